"""What a decoder computes, as plain data. Runs in the engine process, at load.

- `decoder`: the recipe of the whole, its layers, and their branches: MLPs, experts, per-layer token inputs.
- `mixers`: what mixes a sequence's tokens: attention, latent attention, and layers with a recurrent state.
- `primitives`: norms, linears, rotary embeddings; `NotUnderstoodError`, for what has no recipe.
- `activations`: activation functions by name, as torch computes them.
- `limits`: sizes of recurrent layers that the kernels are compiled for.
"""
