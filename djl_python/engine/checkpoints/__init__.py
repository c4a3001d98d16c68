"""Weights: where they lie, how they are stored and rounded, and the model that transformers makes of them."""
