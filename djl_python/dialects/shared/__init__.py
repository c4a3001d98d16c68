"""Shared by dialects: the interface of a dialect, answers, errors, and readers of bodies.

Runs in the worker; routes, pages and errors also in the front end.

- `base`: `Dialect`, `Route`, `Formatter`; `views`: models as pages and queries see them; `openapi`: all routes'
  document.
- `request_body`: reads a JSON body as an object; `typed_body`: as nested types, with errors that name the path.
- `fields`: fields that requests of several APIs have; `chat`, `completion`: OpenAI's, which several APIs take.
- `text_tasks`: embeddings, scores and labels, as several APIs have them.
- `framing`, `typed_stream`: bases of formatters; `custom`: answers made by the user's `@output_formatter`.
- `djl_errors`, `typed_errors`: errors in the shapes of DJL's front end and of TGI.
"""
