"""Tool calls: puts tools into prompts, and parses calls in generated text. Runs in the worker.

- `parser`: `ToolParser`, the table of syntaxes, and the grammar of a forced call.
- `syntax`: a parser as a state machine, the base of the following.
- `json_calls`, `json_lists`: calls as JSON objects, or as a list of them; `named_calls`: a name, and then JSON.
- `tagged_calls`: a name, and texts between tags; `pythonic`: calls as Python writes them.
- `call_reader`: one call in JSON, as it streams; `strict_json`: repairs models' almost-JSON.
- `prompt`: tools in the prompt, for chat templates that have no place for them.
"""
