"""The forms of embeddings, scores, labels and spans that several APIs share.

Runs in the worker. `texts` reads the texts of a request, `formatter` collects the results. `pipelines` has requests and
answers of transformers' pipelines, which Hugging Face's and LMI's APIs follow; their types are in `pipeline_types`.
"""
