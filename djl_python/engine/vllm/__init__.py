"""vLLM as an engine: its row, what it is told, and the one module that imports it.

`row` is read in every process; `arguments` and `sampling` say in vLLM's words what a model and a sequence want, and
import nothing of it; `engine` runs it, in an engine process whose interpreter has it.
"""
