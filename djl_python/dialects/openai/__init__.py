"""OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models.

Runs in the worker; the list of models and errors, in the front end.

- `dialect`: routes, chats and the list of models; chats themselves are `shared.chat`'s.
- `completions`: completions, request and answer; `errors`: errors in OpenAI's shape.
"""
