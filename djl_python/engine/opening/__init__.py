"""Opens a loaded model: chooses a runner, checks its logits, and sizes its memory.

Runs in the engine process, at load. What could run the model is tried in the order of `open_model.CANDIDATES`: a
native program, torch over the paged cache, torch over transformers' own; of an encoder-decoder model, torch over the
paged cache alone. Each has to predict what the model itself predicts for a text that the worker sends, or refuses and
leaves the model as it was; a native program is first proved in fp32, before anything is rounded. The cache gets the
memory that weights and the largest step leave. What was chosen, and why not the kernels, is an `EngineInfo`.
"""
