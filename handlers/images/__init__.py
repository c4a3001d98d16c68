"""The images of a chat: fetched and decoded, and then prepared here or left to an engine. Runs in the worker.

`sources` fetches and decodes them; `processor` prepares them as the checkpoint's own processor does; `pictures` leaves
that to an engine that has processors of its own.
"""
