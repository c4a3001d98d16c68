"""The batch: its sequences, which of them compute what in a step, and where their keys and values lie.

Runs in the engine process; no tensors. `sequence` is one of them; `scheduler` chooses the chunks of prefill and the
decoding sequences of a step, preempts where the cache is full, and has `pacing` bound the prefill; `kv_cache` gives out
blocks, shares them by content and evicts them; `state_slots` does so for the states of recurrent layers.
"""
