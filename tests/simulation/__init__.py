"""A simulation of a server with more replicas than can be run here: chats, replicas with prefix caches, and the very
router that the server's pool has (`server/models/routing`). `python -m tests.simulation.scale` makes the tables of
djl_python/docs/scale.md.
"""
