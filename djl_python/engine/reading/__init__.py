"""Reads a model's structure from a watched run of a copy: the recipe of its computation.

Runs in the engine process, at load; knows neither kernels nor the torch backend. Only `native` imports it.

- `recipe`: the recipe's types, from which the native program is laid out.
- `watching`: makes the copy, runs it, and records its calls of modules, attention and functions.
- `inference`: explains the records, module by module: `inference.decoder.read_recipe` is the entry.
- `comparison`: finds equal recorded numbers, and factors between them.
"""
