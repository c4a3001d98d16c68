"""A text to try models on: prose, numbers, code, other scripts, enough of it for any tokenizer. Runs in the worker."""

from __future__ import annotations

from typing import Final

PROBE_TEXT: Final = """\
A server that answers many people at once reads each question as it comes, and writes all answers side by side, a word \
for everyone in turn. In 1969, 600 million people watched two of them walk on the Moon; it took 8 days, 3 hours and 18 \
minutes.

def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)  # of at least one

Question: what is the capital of France?
Answer: Paris. Où est la gare? ¿Qué hora es? 東京は晴れです。 {"name": "Ada", "scores": [1, 2.5, null]}
The other towns that they passed through that summer were smaller, and nobody remembers what they were called.
"""
