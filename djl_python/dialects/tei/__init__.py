"""Text Embeddings Inference's API.

`dialect` has the routes, `requests` reads bodies, `types` has their shapes, and `errors` those of refusals.
"""
