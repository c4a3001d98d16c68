"""The built-in engine: any causal language model of transformers under continuous batching. Runs in the engine process.

`opening` opens it: memory is taken and kernels are built while torch is being imported. `paged_batch` is its
`RollingBatch`: a step is schedule, draft, run, sample. `profile` is a tool that measures the parts of a decode step.
"""
