"""OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models. Front end and worker.

`dialect` has routes and chats, `completions` the older endpoint, `errors` the shape from which OpenAI's clients make
their exceptions. What LMI's chats have too is in `dialects/shared`.
"""
