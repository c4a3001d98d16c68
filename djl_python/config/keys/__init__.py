"""Warnings about the keys that a model sets: which have no effect, and why.

- `without_effect`: the keys of DJL, LMI and its engines that have no effect here, each with the reason.
- `vllm_names`: the options of vLLM's command line that are no setting's name.
- `remarks`: warnings about keys that are unknown, misplaced, empty, another engine's or without effect.
"""
