"""Requests that this server sends to URLs which others name: which addresses it connects to.

- `addresses`: the rules for addresses, and for hosts by name.
- `images`: a transport of httpx2 for URLs of requests. Runs in the worker's event loop.
- `models`: `open_url` for URLs of models and entry points. Runs in the front end's and workers' threads.

A name is resolved once; the addresses that were checked are the ones connected to, so that a name server which
changes its answer gains nothing. Every hop of a redirect is a connection of its own, with its own check.
"""
