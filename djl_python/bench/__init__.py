"""`djl-serving bench`: measures any endpoint that streams tokens, ours or another's. Runs in the command's process.

Nothing is exported here: `cli` starts `command`, and the project's own benchmark (tests/bench) uses the modules.
"""
