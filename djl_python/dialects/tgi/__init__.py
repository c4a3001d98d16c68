"""TGI's API: /generate, /generate_stream, /, /tokenize, /info."""
