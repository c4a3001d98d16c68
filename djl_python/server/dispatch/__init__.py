"""The one way into a model's pool: finds a request's model, loads it on demand, and makes the call.

Runs in the front end's event loop. Requests over HTTP (`http/exchange`) and those of batches (`batches/calls`) both use
`dispatch`; each writes its own answers.
"""
