"""OpenAI's Responses API: /v1/responses. Source: OpenAI's API reference (Responses, streaming events).

- `dialect`: the routes.
- `items`: what a request sends the model; `messages`: their form for chat templates; `tools`: its tools.
- `request`: the body of a request, translated for the engine.
- `shapes`: the response object; `events`: the events of a stream; `answer`: makes both of what the model generates.
- `errors`: its errors; `sealed`: reasoning that clients keep for the server.
"""
