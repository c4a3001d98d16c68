"""The native CPU forward pass: a decoder as a list of fused operations in C++. Runs in the engine process.

`program` lays a recipe (`engine/reading`) out as operations and runs them step by step; the kernels, C++ headers and
sources, compute them on a pool of threads; `modules` has kernels in place of parts of models that torch runs. The
library is compiled for each kind of processor, when the wheel is built or at first use. Memory for packed weights and
the cache is taken before it is needed. Where the model, the processor or the machine is not supported, torch runs it.
"""
