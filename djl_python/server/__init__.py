"""The front end: HTTP, admission, supervision, metrics. Tornado is imported here and in `bench` only.

One asyncio loop. Tornado's connection reads a request. An `exchange` finds the route, the dialect and the model, and
writes the answer. Each served model has a pool, which admits calls and gives them to workers, and a replica for each
worker process, which restarts it. `lifecycle` runs the server from binding its address to draining; `announcer` prints
the start; `load_check` loads a model once for `djl-serving check --load`.
"""
