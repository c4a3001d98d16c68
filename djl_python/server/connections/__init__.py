"""Clients' connections below HTTP: sockets, TLS, how long they wait, and how many there are.

Runs in the front end's event loop.
"""
