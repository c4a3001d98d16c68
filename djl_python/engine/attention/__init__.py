"""Attention that models look up by name in transformers. Runs in the engine process.

- `parameters`: a layer's geometry, and the parameters of its attention calls.
- `lookup`: the name under which models find our attention, and the function that currently answers its calls.
- `dense`: attention over given keys and values, on torch.
- `observation`: observes the attention calls of a model; `masks`: finds sliding windows that are in its masks only.
- `reach`: the same for encoders, whose masks tell how far each token looks.
"""
