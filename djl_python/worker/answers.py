"""An Output as an HTTP answer: status, headers, body or stream.

Runs in the worker's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, Final

from ..core.errors import HandlerError
from ..formats.http_rules import BODILESS, HEADER_NAME, HEADER_VALUE, SERVERS_OWN
from ..formats.json_framing import JSON, encode_json
from ..handler import Reply
from ..outputs import Output, concatenate, encode_item, item_content_type

#: How long a stream may keep the event loop to itself.
TURN_S: Final = 0.005

#: The advice for a value that can't be sent, by its type.
_INSTEAD: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((dict, list, tuple, bool, int, float), "Output().add_as_json(...)"),
    ((str, bytes, bytearray, memoryview), "Output().add(...)"),
)

Iterate = Callable[[Iterable[Any]], AsyncIterator[Any]]


async def send(result: Any, reply: Reply, iterate: Iterate) -> None:
    """Answer with what a handler returned: an Output, None (204), or an iterator of pieces.

    `iterate` turns a synchronous iterable into an asynchronous one.

    Raises:
        HandlerError: it returned something else, or an Output that cannot be sent; says what is wrong with it.
    """
    if result is None:
        reply.start(204, {})
        reply.finish()
    elif isinstance(result, Output):
        if result.stream_content is None:
            _send_whole(result, reply)
        else:
            await _send_stream(result, _items(result.stream_content, iterate), reply)
    elif hasattr(result, "__aiter__") or hasattr(result, "__next__"):
        pieces = Output().add_stream_content(result, output_formatter=None)
        await _send_stream(pieces, _items(result, iterate), reply)
    else:
        raise invalid_output(result, "an Output or None")


def invalid_output(result: Any, expected: str) -> HandlerError:
    """The error for a result that is not `expected`; it says what to return instead."""
    instead = next((words for types, words in _INSTEAD if isinstance(result, types)), "")
    hint = f": return {instead}" if instead else ""
    return HandlerError(f"Invalid output type: {type(result).__name__}, expected {expected}{hint}")


def _items(items: Iterable[Any] | AsyncIterable[Any], iterate: Iterate) -> AsyncIterator[Any]:
    return aiter(items) if isinstance(items, AsyncIterable) else iterate(items)


def _send_whole(output: Output, reply: Reply) -> None:
    status = _status(output)
    headers = _headers(output)
    body = concatenate(output.content.values)
    if status in BODILESS:
        body = b""
        headers.pop("content-type", None)
    elif not body and status >= 400:  # an error must not be silent, and reason phrases (DJL's way) are not for messages
        body = encode_json({"code": status, "message": output.message})
        headers["content-type"] = JSON
    reply.start(status, headers)
    reply.finish(body)


async def _send_stream(output: Output, items: AsyncIterator[Any], reply: Reply) -> None:
    """Stream the answer, from the first item on, so that an error before that item still has its own status.

    The stream waits for its client, and lets other tasks of the loop run, even if its iterator never awaits.
    """
    status, headers = _status(output), _headers(output)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async for item in items:
            if isinstance(item, Output):  # a generator may begin with one, to set status and headers
                if not reply.started:
                    status, headers = _status(item), headers | _headers(item)
                data = concatenate(item.content.values)
            else:
                formatted = output.stream_formatter(item)
                data = _as_bytes(formatted)
                shown = item if output.stream_formatter is encode_item else formatted
                headers.setdefault("content-type", item_content_type(shown))
            if not reply.started:
                reply.start(status, headers)
                reply.write(concatenate(output.content.values))
            reply.write(data)
            await reply.drain()
            if loop.time() - began_s > TURN_S:
                await asyncio.sleep(0)
                began_s = loop.time()
    finally:
        if (close := getattr(items, "aclose", None)) is not None:
            await close()
    if not reply.started:
        reply.start(status, headers)
        reply.write(concatenate(output.content.values))
    reply.finish()


def _as_bytes(data: Any) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise HandlerError(f"the formatter of a stream returned {type(data).__name__}, expected str or bytes")


def _status(output: Output) -> int:
    code = output.code
    if isinstance(code, bool) or not isinstance(code, int) or not 200 <= code <= 599:
        raise HandlerError(f"the Output's code is {code!r}, expected an HTTP status from 200 to 599")
    return int(code)


def _headers(output: Output) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in output.properties.items():
        if not HEADER_NAME.fullmatch(str(name)):
            raise HandlerError(f"the Output's property {name!r} is not the name of an HTTP header")
        if not HEADER_VALUE.fullmatch(str(value)):
            raise HandlerError(f"the Output's property {name!r} cannot be sent as an HTTP header: {value!r}")
        headers[str(name).lower()] = str(value)
    if output.content_type is not None:
        headers.setdefault("content-type", output.content_type)
    return {name: value for name, value in headers.items() if name not in SERVERS_OWN}
