"""Weights: where they lie, how they are stored and rounded, and the model that transformers makes of them.

Runs in the engine process, at load. Loading chooses device, precision and limits. Where a checkpoint is quantized
(GPTQ, AWQ, AutoRound, compressed-tensors), transformers gets linears and stacks of experts that keep the stored codes;
experts of other checkpoints stay in the mapped files too, until they are packed. Quantization makes codes of weights
that have none. Rotary embeddings are fixed, so that a text does not depend on its neighbours in the batch.
"""
