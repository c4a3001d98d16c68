"""The handlers that DJL brings, over `pipelines`: `huggingface` and its `streaming_utils`, and those of tables.

They run in the worker.
"""
