"""The CPU's own forward pass: a decoder as a list of fused operations in C++, built at first use.

Runs in the engine process. `recipe` finds out what a loaded transformers model computes, by watching it and checking
each guess against its numbers; `program` lays that out as operations; `kernels.cpp` runs them. A model, a processor or
a machine that this does not fit runs on torch instead.
"""
