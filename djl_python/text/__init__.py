"""Strings and token ids: what makes a prompt of a request, and an answer's text of the engine's tokens.

Runs in the worker; knows no torch.

- `chat`: chat templates; `tools`: what a model is told of tools, and the calls that it writes; `reasoning`: which part
  of an answer is for the model itself.
- `tokens`: tokenizing and detokenizing.
- `stream`: one generation's tokens with their text; `stop`: stop sequences, which may end it.
- `well_formed`: text that UTF-8 can encode; `trial_text`: the text that a model is tried on when it is opened.
"""
