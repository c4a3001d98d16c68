"""A handler that answers many requests with one matrix operation: the server gathers them into a batch.

Each item is answered under its own index, with a value or with an error; an error is that item's alone.
"""

from __future__ import annotations

import numpy as np

from djl_python import Input, Output, PayloadError

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def letter_counts(texts: list[str]) -> np.ndarray:
    """How often each letter is in each text: one row per text."""
    return np.array([[text.lower().count(letter) for letter in LETTERS] for text in texts], dtype=np.float64)


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine of the angle between each row of `a` and the same row of `b`; 0 where a row is empty."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: np.ndarray = np.divide((a * b).sum(axis=1), lengths, out=np.zeros(len(a)), where=lengths > 0)
    return cosines


def handle(inputs: Input) -> Output | None:
    """Answer a batch of {"a": "...", "b": "..."} with how alike the letters of the two texts are."""
    if inputs.is_empty():
        return None  # the call that loads the model: there is none here

    output = Output()
    good: list[int] = []
    pairs: list[tuple[str, str]] = []
    for index, item in enumerate(inputs.get_batches()):
        try:
            request = item.get_as_json()
            pairs.append((str(request["a"]), str(request["b"])))
            good.append(index)
        except (PayloadError, KeyError, TypeError):
            output.error('expected {"a": "...", "b": "..."}', code=400, message="bad request", batch_index=index)

    if pairs:
        first, second = zip(*pairs, strict=True)
        similarities = cosine(letter_counts(list(first)), letter_counts(list(second)))
        for index, similarity in zip(good, similarities, strict=True):
            output.add_as_json({"similarity": round(float(similarity), 3)}, batch_index=index)
    return output
