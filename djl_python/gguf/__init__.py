"""Models in GGUF files, as llama.cpp and Ollama have them. Reads files and nothing else; knows numpy, but no torch.

Runs in the front end and in workers, where models are fetched (`sources`), and in the engine, which loads the weights.

- `files`: the models' files, and what a described directory names. The package's own names are its: no numpy.
- `container`: one file's header, metadata and table of tensors; `types` has the numbers of types, `shards` models in
  several files, `reading` values of the metadata by their expected types.
- `dequantizing`, `k_blocks`, `layouts`: blocks of codes to float32.
- `architectures`: what is served, with tensors' names; `configuring` makes config.json, `weights` finds each weight.
- `vocabulary`, `pre_tokenizers`: the tokenizer as tokenizer.json.
- `describing`: all of that as a checkpoint's directory, which has everything but the weights.
"""

from .errors import GgufError
from .files import SUFFIX, TOKENIZER_CLASS, coded_bytes, described_by, loaded_bytes, models_in, parts_of, signature

__all__ = [
    "SUFFIX",
    "TOKENIZER_CLASS",
    "GgufError",
    "coded_bytes",
    "described_by",
    "loaded_bytes",
    "models_in",
    "parts_of",
    "signature",
]
