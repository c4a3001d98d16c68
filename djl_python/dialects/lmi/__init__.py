"""LMI's API, with DJL's routes: /invocations, /predictions/{model}.

Runs in the worker; routes and errors, in the front end.

- `dialect`: routes, parsing and errors; `schema`: bodies as /openapi.json shows them; `parameters`: their fields.
- `format`: the answer in JSON, jsonlines or events; `chat`: chats on the same routes; `batch`: lists of prompts.
"""
