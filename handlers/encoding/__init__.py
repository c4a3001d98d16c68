"""The built-in handler of models that read whole texts: embeddings, scores, labels. Runs in the worker.

`handler` connects the parts. `texts` tokenizes a request's texts. `work` declares the engine's inputs for a request and
the function that makes its result; `embeddings`, `classes`, `tags`, `spans` and `masks` have a row for each kind of
request. `checkpoint` reads the model's files, `checks` refuses before anything is loaded, and `view` answers queries.
"""
