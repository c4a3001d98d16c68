"""Files and batches: requests in files, answered after all others. Runs in the front end's event loop.

- `calls`: answers a file's request with the server's models, as if it had come over HTTP.
- `uploads`: reads forms with files as they arrive; `incoming`: a file that is arriving; `fields`: reads the fields of
  forms and queries.
- `store`: the files and the batches on disk, in `batch_directory`, and their limits.
- `jobs`: runs batches, one or a few at a time, from validating to completed, over restarts; `turns`: whose goes next.
- `measures`: their gauges at /metrics.
- `pages`: answers the routes.
"""
