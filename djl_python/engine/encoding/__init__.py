"""The engine of models that read whole texts and generate none: embeddings, scores, labels of texts and of tokens.

`row`, `settings` and `sentence_transformers` (the files beside a checkpoint) are read in every process; the rest runs
in the engine's. `opening` opens an encoder: `loading` has transformers load the model, `choosing` finds whether native
kernels or torch run it, `modules` computes what sentence-transformers puts behind it, `model` computes a batch of
sequences. `queue` decides which sequences are computed together, and `batching` is the `Encoder` that the loop steps.
"""
