"""The CPU's own forward pass: a decoder as a list of fused operations in C++.

Runs in the engine process. `watch` records a loaded transformers model at work, `read` makes a `recipe` of what it
computes and checks it against the record, `program` lays that out as operations, and the kernels (`kernels.cpp`,
`*_products.cpp`) run them. A model, a processor or a machine that this does not fit runs on torch instead.
"""
