"""API keys: the file of their hashes, the sender of each request, and their rates.

Runs in the front end's event loop; `command` is `djl-serving keys`, in a process of its own.
"""
