"""What is said of the keys that a model sets: which of them count, and why others don't.

- `without_effect`: the keys of DJL, LMI and its engines that have no effect here, each with the reason.
- `remarks`: warnings about keys that are unknown, misplaced, empty, another engine's or without effect.
"""
