"""Triton's generate extension, and KServe v2: /v2. Front end and worker.

`dialect` has the routes; `generate` and `infer` read requests and write answers, `tensors` their binary form, `pages`
answers health, metadata, statistics and the model repository; `types` are the bodies.
"""
