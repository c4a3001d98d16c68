"""vLLM as an engine: its row, its arguments, and the one module that imports it.

`row` is read in every process; `arguments` and `sampling` translate a model's and a sequence's settings, and import
nothing of it; `engine` runs it, in an engine process whose interpreter has it.
"""
