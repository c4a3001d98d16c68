"""TGI's API: /generate, /generate_stream, /, /tokenize, /chat_tokenize, /info, /health. Front end and worker.

`dialect` has routes, queries and parsing, `parameters` the router's rules and messages, `types` the bodies, `format`
the answers.
"""
