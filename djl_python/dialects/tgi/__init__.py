"""TGI's API: /generate, /generate_stream, /, /tokenize, /info.

Runs in the worker; health and errors, in the front end.

- `dialect`: routes, parsing and queries; `types`: bodies and answers as /openapi.json shows them.
- `parameters`: generation parameters, translated for the engine; `format`: the answer, whole or as events.
"""
