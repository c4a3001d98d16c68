"""The front end: HTTP, admission, supervision, metrics. The only package that imports tornado.

One asyncio loop. A request comes in through Tornado's connection and is seen to its answer's end by an exchange, which
finds the route, the dialect and the model. Each served model has a pool, which admits calls and gives them to workers,
and a replica for each worker process, which starts it again. Beside them: the life of the server from binding its
address to draining, what is printed at start, metrics, and loading a model once for `djl-serving check --load`.
"""
