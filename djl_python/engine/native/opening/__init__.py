"""Opens a loaded model as a native program, or gives torch's model native parts. Engine process, once.

- `native_program`: reads, proves and lays out a model.
- `encoder_program`: the same for an encoder, with a proof of its own.
- `proof`: checks that the program gives the model's own logits in fp32; `exact`: computes those.
- `parts`: native kernels for a model that torch runs.
"""
