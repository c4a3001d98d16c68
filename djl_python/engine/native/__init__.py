"""The native CPU forward pass: a decoder as a list of fused operations in C++.

Runs in the engine process. `reading` derives a recipe of what a model computes from a watched run, `program` builds
operations from the recipe, as `abi` describes them, and the kernels (`kernels/`) run them. Where the model, the
processor or the machine is not supported, torch runs the model.
"""
