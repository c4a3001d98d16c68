"""Strings and token ids: tokenizing, incremental detokenizing, stop sequences. Runs in the worker; knows no torch."""
