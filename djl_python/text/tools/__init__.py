"""Tool calls: how a chat tells a model of tools, and how calls are found in what it writes. Runs in the worker.

- `parser`: `ToolParser`, the table of syntaxes, and the grammar of a call that is forced.
- `syntax`: a parser as a state machine, the base of the following.
- `json_calls`, `json_lists`: calls as JSON objects, or as a list of them; `named_calls`: a name, and then JSON.
- `tagged_calls`: a name, and texts between tags; `pythonic`: calls as Python writes them.
- `call_reader`: one call in JSON, as it streams; `strict_json`: JSON of what models write in its place.
- `prompt`: tools in the prompt, for chat templates that have no place for them.
"""
