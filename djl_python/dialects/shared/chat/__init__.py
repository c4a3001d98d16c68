"""Chats in OpenAI's form, of which LMI's and TGI's have a part. Runs in the worker.

- `request`: the body of a chat request, translated for the engine.
- `messages`: its messages and tools, and their form for chat templates.
- `answer`: the answer, whole or as a stream of chunks.
"""
