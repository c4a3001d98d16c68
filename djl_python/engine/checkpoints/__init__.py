"""Weights: where they lie, how they are quantized, and the model that transformers makes of them.

Runs in the engine process, at load; `directory` before one is started.

- `directory`: what the files show without torch: what is missing, context lengths.
- `loading`: loads a checkpoint with transformers: device, precision, limits; `progress_bars`: reports how far that is.
- `checkpoint_files`: tensors in memory-mapped files; `weights`: a tensor, or a weight that stays in its file.
- `quantized_checkpoint`: which formats of quantized checkpoints are read; `unpacking`: their codes, scales and zeros.
- `dequantizing_linear`: linears that keep a checkpoint's codes; `expert_stacks`: the weights of a layer's experts.
- `plain_checkpoint`: the experts of unquantized checkpoints, left in their files.
- `preparing`: changes a model before its weights are loaded; `deferred_loading`: so that such weights stay where they
  are.
- `quantization`: integer codes for kernels, and rounding to them.
- `rope`: rotary embeddings that change with a text's length.
- `module_tree`: walking a model's modules.
"""
