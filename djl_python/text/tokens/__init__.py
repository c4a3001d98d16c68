"""Tokenizing: text to token ids and back, as transformers does it but mostly without it. Runs in the worker.

- `tokenizer`: a checkpoint's tokenizer; `tokenizer_files`: its files; `pipelines`: transformers' tokenizer classes, and
  `encoders` those of encoders.
- `detokenizer`: the text that each generated token adds; `token_bytes`: the bytes that a token stands for.
- `vocabulary`: all tokens as bytes, for the engine's grammars.
- `long_texts`: texts too long to be tokenized whole.
"""
