"""Continuous batching over a paged KV cache: ids in, ids out.

`client` runs in the worker and loads no torch; everything else runs in the engine process.
"""
