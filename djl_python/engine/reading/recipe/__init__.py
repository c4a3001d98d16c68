"""A model's computation as plain data. Runs in the engine process, at load.

- `decoder`: the recipe of the whole, its layers, and their branches: MLPs, experts, per-layer token inputs.
- `encoder`: the recipe of an encoder, of the same layers.
- `mixers`: attention, latent attention, and layers with a recurrent state, which mix a sequence's tokens.
- `primitives`: norms, linears, rotary embeddings; `NotUnderstoodError`, for models without a recipe.
- `activations`: activation functions by name, as torch computes them.
- `limits`: sizes of recurrent layers that the kernels are compiled for.
"""
