"""Models that torch runs, with their own code. Runs in the engine process.

Over the paged cache: our attention stands where the model looks up its own, the states of hybrid models' layers lie
beside it, images run through the model up to its language model once. On a GPU, steps are recorded (`step_graphs`)
with an attention of their own (`token_attention`). Over transformers' own cache, for models whose attention can't be
replaced or that have none: one sequence after the other. `adapters` adds what those of a step's sequences compute.
"""
