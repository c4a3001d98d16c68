"""Triton's generate extension, and KServe v2: /v2."""
