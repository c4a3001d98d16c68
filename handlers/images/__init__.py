"""The images of a chat: fetched, decoded, and prepared here or by an engine. Runs in the worker.

`sources` fetches and decodes them; `processor` prepares them as the checkpoint's own processor does; `pictures` is for
an engine that prepares images itself; `needs` says which packages are missing, also in `djl-serving check`.
"""
