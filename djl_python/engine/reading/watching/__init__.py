"""Runs a copy of a model, and records its calls. Runs in the engine process, at load.

- `copies`: copies of a model in fp32 with random numbers, or with its own.
- `run`: runs a copy on a few tokens; records calls of modules, and which belong to which layer.
- `encoder_run`: the same for encoders, whose attention looks ahead.
- `attention`: records attention, of models that look it up and of those that compute it themselves.
- `functions`: records functions that modules call by name, such as recurrent layers' scans.
- `windows`: the sliding windows of models that compute attention themselves.
"""
