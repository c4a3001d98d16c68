"""The native CPU forward pass: a decoder as a list of fused operations in C++.

Runs in the engine process. `watch` records a run of a loaded transformers model, `read` derives a `recipe` of what it
computes and checks it against the record, `program` builds operations from the recipe, as `abi` describes them, and the
kernels (`kernels/`) run them. Where the model, the processor or the machine is not supported, torch runs the model.
"""
