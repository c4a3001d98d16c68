"""Fields that requests of several APIs have, and their limits. Runs in the worker.

- `generation`: the fields of OpenAI's requests and of those modelled on them.
- `sampling`: fields that only steer sampling; `seeds`: which seeds clients may send.
- `sequence_limits`, `word_lists`: how many sequences, stop sequences, banned words and token ids a request may name.
"""
