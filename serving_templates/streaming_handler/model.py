"""A handler that streams: each item that its generator yields is sent to the client at once."""

from __future__ import annotations

from collections.abc import Iterator

from djl_python import Input, Output


def words(text: str) -> Iterator[str]:
    """The slow part of a real handler, which makes one piece after the other."""
    yield from text.split()


def handle(inputs: Input) -> Output | None:
    """Answer one request, JSON {"inputs": "..."}, word by word."""
    if inputs.is_empty():
        return None  # the call that loads the model: there is none here
    return Output().add_stream_content(words(inputs.get_as_json()["inputs"]))
