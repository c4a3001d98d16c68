"""From a loaded model to one that runs: by what, with how much memory, and whether it computes what the model does.

Runs in the engine process, at load. What could run the model is tried in order: a native program, torch over the paged
cache, torch over transformers' own. Each has to predict what the model itself predicts for a text that the worker
sends, or refuses and leaves the model as it was; a native program is first proved in fp32, before anything is rounded.
The cache gets the memory that weights and the largest step leave. What was chosen, and why not the kernels, is an
`EngineInfo`.
"""
