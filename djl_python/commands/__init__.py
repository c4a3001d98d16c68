"""Shared by the commands of `djl-serving`, and the commands without a room of their own.

Runs in the process of the command, before anything is served.

- `table`: the commands, and suggestions for mistyped ones.
- `models`: the arguments that name models and settings, and the configuration that results.
- `check`: `djl-serving check`; `handler_check`: a model's handler, and what it would refuse.
- `pull`, `list_models`, `ps`, `stop`: downloads, and the models of a running server (`running_server`, `tables`).
- `help`: `djl-serving help` and `version`.
"""
