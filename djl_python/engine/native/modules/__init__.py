"""Native kernels in place of parts of models that torch runs. Runs in the engine process.

Linears, MLPs and norms, where a trial shows that a kernel computes just that; products of one input together; functions
of transformers that modules call by name (gated delta rule, convolutions, Mamba 2); a paged cache for attention.
"""
