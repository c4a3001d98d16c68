"""From scores to tokens. Runs in the engine process.

- `sampling_plan`: how each row is sampled; `sampler`: changes scores as requests ask, and has a token chosen for each.
- `choosing`: the interface of what chooses; `torch_chooser`: the one of torch's operations.
- `draws`, `row_scan`, `penalties`: random draws, reading rows of logits, penalties for repetition.
- `grammar`: which tokens may come next; `grammar_tokens`, `grammar_keys`: what llguidance asks of it.
"""
