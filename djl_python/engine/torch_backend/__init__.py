"""Models that torch runs: on the paged cache, or on transformers' own."""
