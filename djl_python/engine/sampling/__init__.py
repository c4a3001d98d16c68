"""From scores to tokens. Runs in the engine process.

- `sampling_plan`: how each row is sampled; `sampler`: changes scores as requests ask, and has a token chosen for each.
- `row_sampler`: the interface of what samples from whole rows of logits; `torch_row_sampler`: that of torch's
  operations.
- `draws`, `row_scan`, `penalties`: random draws, reading rows of logits, penalties for repetition.
- `grammar`: which tokens may come next; `grammar_tokens`, `grammar_keys`: what llguidance asks of it.
"""
