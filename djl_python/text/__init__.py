"""Strings and token ids: makes a request's prompt, and an answer's text from the engine's tokens.

Runs in the worker; knows no torch.

- `chat`: chat templates, which run in a `template_environment`; `tools`: tools in prompts, and the calls that models
  write; `reasoning`: separates a model's reasoning from the answer.
- `tokens`: tokenizing and detokenizing.
- `stream`: one generation's tokens with their text; `stop`: stop sequences, which may end it.
- `well_formed`: text that UTF-8 can encode; `probe_text`: the text that a model is tried on when it is opened.
"""
