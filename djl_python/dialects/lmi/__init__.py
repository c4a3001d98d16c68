"""LMI's API, with DJL's routes: /invocations, /predictions/{model}. Front end and worker.

`dialect` reads requests, `parameters` their generation parameters, `chat` bodies with messages, `batch` the
dynamic-batch schema; `format` writes answers; `schema` is what /openapi.json shows.
"""
