"""DJL's names for reading chats, for a `model.py` that reads them itself. Runs in the worker."""
