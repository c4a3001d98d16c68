"""Native kernels in place of parts of models that torch runs. Runs in the engine process.

Linears; functions of transformers that modules call by name (gated delta rule, convolutions); a paged cache for
attention.
"""
