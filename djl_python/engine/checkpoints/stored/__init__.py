"""What checkpoints' files hold of weights, by their formats. Runs in the engine process, at load.

- `checkpoint_files`: tensors in memory-mapped safetensors; `plain_checkpoint`: the experts of unquantized checkpoints.
- `quantized_checkpoint`: which formats of quantized checkpoints are read; `unpacking`: their codes, scales and zeros.
- `gguf_checkpoint`: the weights of a GGUF file, as codes for the kernels or as numbers.
"""
