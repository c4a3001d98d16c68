"""Recipes as lists of fused operations, and steps of the batch that run them."""
