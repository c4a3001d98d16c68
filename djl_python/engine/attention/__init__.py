"""Attention that models look up by name in transformers. Runs in the engine process.

- `parameters`: a layer's geometry, and what a call of its attention says beside queries, keys and values.
- `lookup`: the name under which models find our attention, and whose function answers its calls at the time.
- `dense`: attention over given keys and values, on torch.
"""
