"""OpenAI's files and batches: requests in files, answered behind all others. Runs in the front end's event loop.

- `calls`: answers a file's request with the server's models, as if it had come over HTTP.
- `uploads`: takes the forms that bring files, as they arrive; `incoming`: such a file, until it is one of the store's;
  `fields`: those of forms and queries.
- `store`: the files and the batches on disk, in `batch_directory`, and what bounds them.
- `jobs`: runs batches, one or a few at a time, from validating to completed, over restarts.
- `measures`: what of that is at /metrics.
- `pages`: answers the routes.
"""
