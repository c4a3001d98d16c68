"""Triton's generate extension, and KServe v2's inference protocol: /v2.

Runs in the worker; pages and errors, in the front end.

- `dialect`: routes and which of the two a request is; `types`: bodies and answers as /openapi.json shows them.
- `generate`: text by the generate extension; `infer`, `tensors`: text as tensors, in JSON or binary.
- `pages`: health, the server's and the models' descriptions, and the model repository.
"""
