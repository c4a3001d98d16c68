"""The protocol of runners, for any backend, and its companions. Runs in the engine process.

- `model_runner`: the protocol: chunks of sequences in, logits out.
- `opening_request`: the input of each way to run a loaded model, and its refusal.
- `reference`: the model's own logits, which a runner has to compute; `probe`: the text for that, and the distance of
  two runners' logits; `probe_steps`: short steps by which a runner is tried.
- `cache_size`: sizes the KV cache; `file_mapping`: gives memory back after loading.
- `opened_model`: a model with its runner, ready to step.
"""
