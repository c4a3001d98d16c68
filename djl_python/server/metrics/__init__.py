"""The server's metrics, and their text at /metrics.

Runs in the front end, which counts what it sees itself (requests, queue, workers); the rest arrives in the workers'
`Report` messages under the same names without `djl_`. Metrics of batches (`batches`, `batch_bytes_used` ...) are
computed while /metrics is answered.

- `specs`: the table of all metrics, from which `families` makes Prometheus' objects.
- `metrics`: those of the server; `model_metrics`: those of one model and its workers.
- `engine_metrics`, `tgi_metrics`: what engines keep themselves, and TGI's names for ours.
"""
