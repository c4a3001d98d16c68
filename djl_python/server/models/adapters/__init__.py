"""The adapters of a model: `adapter` is one, `model` holds the wanted ones, `worker` brings each worker to that state.

Runs in the front end's event loop. A worker gets the difference between its adapters and the wanted ones, whenever
these change and when the worker is new. So a change, its rollback when a worker refuses it, and a new worker take the
same path.
"""
