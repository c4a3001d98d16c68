"""Weights: their files, their quantization, and the model that transformers makes of them.

Runs in the engine process, at load; `directory` before one is started.

- `directory`: checks of the files without torch: missing files, sizes against config.json, context lengths.
- `loading`: loads a checkpoint with transformers: device, precision, limits; `progress_bars`: reports progress.
- `stored`: what is in the files, by their formats; `weights`: a tensor, or a weight that stays in its file.
- `dequantizing_linear`: linears that keep a checkpoint's codes; `expert_stacks`: the weights of a layer's experts.
- `blocks`: where rows of a GGUF file's blocks are.
- `preparing`: changes a model before its weights are loaded; `leaving`: which weights stay in their files;
  `deferred_loading`: leaves them there.
- `quantization`: integer codes for kernels, and rounding to them.
- `rope`: rotary embeddings that change with a text's length.
- `linears`: which modules compute a linear function.
"""
