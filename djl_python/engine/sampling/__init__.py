"""Chooses tokens from scores. Runs in the engine process.

- `sampling_plan`: how each row is sampled; `sampler`: changes scores by the requests' rules, and has tokens chosen.
- `row_sampler`: the protocol for sampling from whole rows of logits; `torch_row_sampler`: its implementation with
  torch.
- `draws`, `row_scan`, `penalties`: random draws, reading rows of logits, penalties for repetition.
- `grammar`: which tokens may come next; `grammar_tokens`, `grammar_keys`, `grammar_gbnf`: adapt tokens and grammars to
  llguidance.
- `grammar_compiler`: compiles and caches grammars; `grammar_trials` first has each tried in a process of
  `grammar_trial`, within `grammar_limits`.
"""
