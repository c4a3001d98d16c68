"""LMI's API, with DJL's routes: /invocations, /predictions/{model}.

Runs in the worker; routes and errors, in the front end.

- `dialect`: routes, parsing and errors; `schema`: bodies as /openapi.json shows them; `parameters`: the generation
  parameters; `structured_output`: those that constrain the text.
- `format`: the answer in JSON, jsonlines or events; `batch`: lists of prompts.
- `chat`, `completion`: OpenAI's on the same routes.
"""
