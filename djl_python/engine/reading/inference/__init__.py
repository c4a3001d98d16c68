"""Explanations of a watched run, each a part of the recipe. Runs in the engine process, at load.

A reader looks for the computation, among those that recipes know, that makes the recorded result of the recorded input.

- `decoder`: the whole model; it has `embedding` (before the first layer), `layer` and `head` (the logits) read.
- `layer`: one layer's branches and their sum; it has the mixers and the MLP read.
- `layer_record`: one layer's part of the recorded run.
- `attention`, `latent_attention`, `recurrent`, `selective_state_space`: mixers; `rotary`: rotary embeddings.
- `mlp`, `experts`, `token_inputs`: what comes after the mixers.
- `norms`, `columns`: recognize norms, and columns of a projection's result.
"""
