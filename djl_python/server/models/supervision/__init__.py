"""Supervision of one worker: whether it responds, and when the next one is started. Runs in the front end."""
