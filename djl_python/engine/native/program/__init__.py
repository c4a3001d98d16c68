"""A recipe as a list of fused operations, and the steps of the batch that run them. Runs in the engine process.

Weights are packed in the order in which kernels read them; each part of a layer is laid out as operations on addresses;
a step is the program, which tokens there are, and where their keys, values and states lie. Choosing tokens is an
operation too. `encoder_program` runs texts in a row, without a cache: `text_arrays`.
"""
