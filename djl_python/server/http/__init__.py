"""HTTP/1.1 on Tornado's connections: from a client's bytes to a call of a model's pool or a page, and back.

Runs in the front end's event loop.
"""
