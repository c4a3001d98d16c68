"""Explanations of a watched run, each a part of the recipe. Runs in the engine process, at load.

A reader looks for the known computation that maps the recorded input to the recorded result.

- `decoder`: the whole model; it has `embedding` (before the first layer), `layer` and `head` (the logits) read.
- `encoder`: a whole encoder; it has each `layer` read.
- `layer`: one layer's branches and their sum; it has the mixers and the MLP read.
- `layer_record`: one layer's part of the recorded run.
- `attention`, `latent_attention`, `recurrent`, `selective_state_space`: mixers; `rotary`: rotary embeddings.
- `mlp`, `experts`, `token_inputs`: what comes after the mixers.
- `norms`, `columns`: recognize norms, and columns of a projection's result.
"""
