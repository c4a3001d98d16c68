"""Encoder-decoder models on torch, over the paged KV cache. Runs in the engine process."""
