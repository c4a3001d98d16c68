"""Continuous batching over a paged KV cache: ids in, ids out.

`client` runs in the worker and loads no torch; everything else runs in the engine process. `interface` is what any
engine is (`RollingBatch`), and `row` what other processes know of it; `loop` takes sequences in, steps the batch, and
sends one frame of events a step; `echo` is an engine without a model. The built-in engine has the rooms below, each of
which imports only those before it: `devices`, `attention`, `batch`, `sampling`, `checkpoints`, `adapters`, `runner`,
`reading`,
`native`, `torch_backend`, `opening`, `drafting`, `parallel`, `builtin`; with `deepspeed`, DeepSpeed places its weights.
`native` and `reading` are a wing: the others import `native.api` alone. `vllm` and `trtllm` are other engines.
"""
