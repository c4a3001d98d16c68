"""Speculative decoding: draft tokens, which the model checks together in one step. Runs in the engine process.

`ngram` looks them up in the text so far, `draft_model` has a smaller model write them; `speculation` decides how many,
from the acceptance rate and what a row costs; `speculation_setup` opens the drafter of the settings.
"""
