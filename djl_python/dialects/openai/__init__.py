"""OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models.

Runs in the worker; the list of models and errors, in the front end.

- `dialect`: routes and the list of models; chats are `shared.chat`'s, and completions `shared.completion`'s.
- `batches`: shapes and routes of files and batches; the server itself answers them.
- `errors`: errors in OpenAI's shape.
"""
