"""LMI's API, with DJL's routes: /invocations, /predictions/{model}.

Runs in the worker; routes and errors, in the front end.

- `dialect`: routes, parsing and errors; `schema`: bodies as /openapi.json shows them; `parameters`: their fields, of
  which `structured_output` says what the text has to be.
- `format`: the answer in JSON, jsonlines or events; `batch`: lists of prompts.
- `chat`, `completion`: OpenAI's on the same routes.
"""
