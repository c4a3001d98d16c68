"""Kernels in place of parts of models that torch runs."""
