"""Strings and token ids. Runs in the worker, in its event loop unless a module says otherwise; knows no torch.

In: chat templates, tokenizing, texts that are too long to be tokenized whole. Out, for each token: incremental
detokenizing, stop sequences, tool calls in the syntax of the model's family, JSON made well-formed. For grammars: the
bytes of every token. Tokenizers and templates give what transformers gives, without importing it.
"""
