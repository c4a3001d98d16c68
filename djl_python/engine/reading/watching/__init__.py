"""Runs of a copy of a model, and what is recorded of them. Runs in the engine process, at load.

- `copies`: copies of a model in fp32 with random numbers, or with its own.
- `run`: runs a copy on a few tokens; records calls of modules, and which belong to which layer.
- `attention`: records attention, of models that look it up and of those that compute it themselves.
- `paged_attention`: observes the calls of models that look attention up.
- `functions`: records functions that modules call by name, such as recurrent layers' scans.
- `windows`: the sliding windows of models that compute attention themselves.
- `masks`: sliding windows that a model has in its masks only.
"""
