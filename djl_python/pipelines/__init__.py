"""Models of transformers in the worker's own process, for `djl_python.huggingface` and what else generates there.

Runs in the thread for the user's code. The built-in handler does not use it: its models are in the engine, these are
where a `model.py` can reach them. torch and transformers are imported when a model is loaded.
"""
