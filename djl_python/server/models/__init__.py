"""The served models: their registry, their workers, and the calls that workers answer. Knows no HTTP.

Runs in the front end's event loop.
"""
