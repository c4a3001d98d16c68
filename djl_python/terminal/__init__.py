"""The subcommands for people at a terminal: `chat`, `run` and `completion`.

Runs in the command's own process. `chat` and `run` talk to a server over OpenAI's API (`openai_api`): any server at a
URL, or one that they start themselves for a model (`own_server`), which ends with them.
"""
