"""The batch: its sequences, which of them compute what in a step, and where their keys and values lie.

Runs in the engine process; no tensors, no model.

- `sequence`: a request's tokens and its cache blocks; `chunk`: a sequence's part in a step.
- `scheduler`: the chunks of the next step; `pacing`: how many prefill tokens one may have.
- `kv_cache`: which block holds what: allocation, sharing by content, eviction.
- `state_slots`: the memory of recurrent states, of sequences and saved ones.
"""
