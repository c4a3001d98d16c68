"""What dialects share: requests, answers, errors, and how bodies are read. Front end and worker.

`base` is the interface: `Dialect`, `Route`, `Formatter`. Reading: `request_body`, `typed_body` (a body as a type, or
the path of what is wrong), `generation_fields`, `sampling_fields`, `seeds`, `word_lists`, `sequence_limits`; chats:
`chat_messages`, `chat_request`. Writing: `framing`, `typed_stream`, `chat_answer`, `custom` (the user's formatter).
Errors: `djl_errors`, `typed_errors` (TGI's shape). `openapi` makes /openapi.json of a route table.
"""
