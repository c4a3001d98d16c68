"""The adapters of a model: `adapter` is one, `model` says which there should be, `worker` brings each worker there.

Runs in the front end's event loop. A worker is told of each difference to what it has, when that changes and when the
worker is new. So a change, its undoing when a worker refuses it, and a worker that comes later are one thing.
"""
