"""Anthropic's API: /v1/messages and /v1/messages/count_tokens. Source: Anthropic's API reference, version 2023-06-01.

- `dialect`: the routes.
- `blocks`: the parts of messages; `request`: the body of a request, translated for the engine.
- `answer`: the message that is generated, whole or as events; `errors`: its errors.
"""
