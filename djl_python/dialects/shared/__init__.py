"""What several dialects need: the interface of a dialect, answers, errors, and how bodies are read.

Runs in the worker; routes, pages and errors also in the front end.

- `base`: `Dialect`, `Route`, `Formatter`, and what pages and queries may ask. `openapi`: the document of all routes.
- `request_body`: a JSON body as an object; `typed_body`: as nested types, refused with the path of what is wrong.
- `fields`: fields that requests of several APIs have; `chat`, `completion`: OpenAI's, which several APIs take.
- `framing`, `typed_stream`: bases of formatters; `custom`: answers made by the user's `@output_formatter`.
- `djl_errors`, `typed_errors`: errors in the shapes of DJL's front end and of TGI.
"""
