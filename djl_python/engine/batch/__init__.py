"""The batch: its sequences, their chunks in each step, and the cache blocks of their keys and values.

Runs in the engine process; no tensors, no model.

- `sequence`: a request's tokens and its cache blocks; `chunk`: a sequence's part in a step.
- `scheduler`: the chunks of the next step; `pacing`: how many prefill tokens one may have.
- `kv_cache`: which block holds what: allocation, sharing by content, eviction.
- `adapter_slots`: which adapters a runner holds, and whose turn it is.
- `state_slots`: the memory of recurrent states, of sequences and saved ones.
"""
