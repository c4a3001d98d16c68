"""DJL's classes of a handler's settings, which a `model.py` makes of `inputs.get_properties()`. Runs in the worker.

They are for the user's code: this project's own settings are in `config`.
"""
