"""A model's structure as a recipe: what its layers compute, in terms of norms, linears, mixers and experts.

Runs in the engine process, at load; imports no kernels. A copy of the model with random, well-conditioned weights is
run on a few tokens and watched: inputs and outputs of modules and functions, and how attention was called or computed.
What a module does is inferred from equal numbers, not from class names. Mixers are attention, latent attention, and
layers with a state (gated delta nets, state spaces, short convolutions).
"""
