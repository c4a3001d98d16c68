"""Which models have workers: loaded by a request, unloaded when they are idle or when another needs their memory.

Runs in the front end's event loop.

- `residence`: loads for requests, times of idleness, and which model goes first.
- `entry`: what is kept of each model.
- `memory`: what a model needs, estimated and measured.
- `clock`: the time, which tests set.
"""
