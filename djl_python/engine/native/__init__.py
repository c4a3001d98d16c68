"""The native CPU forward pass: a decoder as a list of fused operations in C++.

Runs in the engine process. `reading` derives a model's recipe from a watched run, `program` builds operations from the
recipe, as `abi` describes them, and the kernels (`kernels/`) run them. `opening` opens a loaded model as a program;
`modules` are kernels in a model that torch runs. Where the model, the processor or the machine is not supported, torch
runs the model. The rest of the engine imports `api`, and nothing else of this folder and `reading`.

`kernels/` itself has the program in C++, its threads, what they prefetch, and `abi.h`. Its folders:

- `vectors`: the arithmetic of each kind of processor: vectors, tiles, number formats, activation functions
- `linear`: products with weights in each format, and the packing of weights
- `attention`: attention, and the KV cache that it reads
- `rows`: embeddings, norms, gates, the routing of experts
- `states`: convolutions, delta rules, state spaces
- `sampling`: the choice of a token from logits
"""
