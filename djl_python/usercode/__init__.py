"""The user's files: found, read without being run, loaded; and dynamic batches for them. Runs in the worker.

`module` finds and imports a model.py, `source` analyses one without running it (for `djl-serving check`, in the front
end), `imports` finds what it lacks, some of which an engine's environment may have (`engine_packages`). `transformers4`
finds calls of transformers 4, and `transformers4_shims` puts some back. `errors` puts what it raises into words.
`batching` gathers calls into one; `batch_parts` joins them to DJL's form of a batch and splits its answer, by the keys
of `batch_keys`.
"""
