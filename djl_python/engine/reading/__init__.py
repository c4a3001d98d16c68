"""A model's structure, read from a watched run of a copy of it: the recipe of what it computes.

Runs in the engine process, at load; knows neither kernels nor the torch backend.

- `recipe`: the recipe's types. They are what the native program is laid out from.
- `watching`: makes the copy, runs it, and records its calls of modules, attention and functions.
- `inference`: explains the records, module by module: `inference.decoder.read_recipe` is the entry.
- `linears`: which modules compute a linear function.
- `call_errors`: what a model's code raises where it is called in a way that does not fit.
- `comparison`: which recorded numbers are the same, and by what factor they differ.
"""
