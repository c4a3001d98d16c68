"""Supervision of one worker. Runs in the front end's event loop.

- `running_worker`: a worker from the start of its process to its end.
- `responsiveness`: whether it responds; `restarts`: when the next one is started; `turns`: whose turn it is to load.
"""
