"""Models in the worker's own process: transformers' for `djl_python.huggingface`, and those of tables.

Runs in the thread for the user's code. The built-in handler does not use it: its models are in the engine, these are
where a `model.py` can reach them. Libraries are imported when a model is loaded.
"""
