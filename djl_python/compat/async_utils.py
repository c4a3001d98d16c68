"""Answers of handlers in asynchronous mode, by the names that LMI's page on vLLM has for them.

Runs in the worker.

    async def handle(inputs):
        return handle_streaming_response(pieces(), lambda piece: (piece, piece == "end"))
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from typing import Any

from ..formats.json_framing import JSON, JSONLINES, encode_finite_json
from ..outputs import Output


def create_non_stream_output(
    data: Any, properties: Mapping[str, Any] | None = None, error: str | None = None, code: int | None = None
) -> Output:
    """A whole answer, as JSON.

    Args:
        data: a text that is JSON already, or what becomes JSON.
        properties: headers.
        error: why there is no answer; `data` is not sent then.
        code: the HTTP status; with an error, 424 if it is not given.
    """
    output = Output(code or 200)
    if error:
        output.error(error, code or 424)
    else:
        output.add_property("content-type", JSON).add(_line(data))
    for name, value in (properties or {}).items():
        output.add_property(name.lower(), value)
    return output


def create_stream_chunk_output(
    data: Any, last_chunk: bool, error: str | None = None, code: int | None = None
) -> Output:
    """A piece of a streamed answer: a line of JSON, for a handler that is an asynchronous generator to yield.

    Args:
        data: a text that is JSON already, or what becomes JSON.
        last_chunk: whether no other follows. The stream ends where the generator does.
        error: what went wrong, sent as a line `{"error": ..., "code": ...}` instead of `data`.
        code: the HTTP status, where this is the first piece; with an error, 424 if it is not given.
    """
    code = code or (424 if error else 200)
    line = _line({"error": error, "code": code} if error else data)
    return Output(code).add_property("content-type", JSONLINES).add(line)


async def handle_streaming_response(
    response: AsyncIterable[Any],
    stream_output_formatter: Callable[..., Any],
    accumulate_chunks: bool = False,
    **kwargs: Any,
) -> AsyncIterator[Output]:
    """Pieces of an asynchronous generator as pieces of an answer, up to the one that the formatter calls the last.

    Args:
        stream_output_formatter: `(chunk, **kwargs)` -> (data, whether it is the last); with `accumulate_chunks`,
            `(chunk, history=[...], **kwargs)` -> (data, whether it is the last, the history for the next one).

    Raises:
        Exception: the generator or the formatter raised it, which the server answers as for any handler.
    """
    history: Any = []
    async for chunk in response:
        if accumulate_chunks:
            data, last, history = stream_output_formatter(chunk, history=history, **kwargs)
        else:
            data, last = stream_output_formatter(chunk, **kwargs)
        yield create_stream_chunk_output(data, last)
        if last:
            return


def _line(data: Any) -> bytes:
    return (data.encode() if isinstance(data, str) else encode_finite_json(data)) + b"\n"
