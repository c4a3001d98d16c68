"""The served models: which there are, their workers, and the calls that these answer. Knows no HTTP.

Runs in the front end's event loop.
"""
