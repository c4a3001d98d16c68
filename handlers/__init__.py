"""The built-in handler for language models, installed as `djl_python.handlers`. Runs in the worker.

`text_generation` connects the parts. In: `user_formatters` (with `user_tokenizer`), `preparation` (templates, tokens,
limits; `word_lists`; `images`; `large_bodies`). Through the engine: `decoding` runs the sequences of a request, up to
their deadline and their budget for reasoning. Out: `answer`, and `step_metrics`. `model_view` answers queries,
`adapters` changes the model's adapters, `checks` refuses before anything is loaded.
"""
