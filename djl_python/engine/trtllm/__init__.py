"""TensorRT-LLM as an engine, untested on hardware: its row, its arguments, and the one module that imports it.

`row` is read in every process; `arguments` and `sampling` translate a model's and a sequence's settings, and import
nothing of it; `engine` runs it, in an engine process whose interpreter has it. What they rely on was read in the
sources of its release 1.2, whose models run on PyTorch: nothing is compiled with TensorRT.
"""
