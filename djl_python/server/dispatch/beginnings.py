"""A request's trail: what its worker is chosen by, read from a body that is not parsed here.

Runs in the front end's event loop. The fields that prompts are made of are found with msgspec, which skips the others,
more than a gigabyte a second. They are compared as their JSON text is, in the order in which chat templates put them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Raw

from ...formats.json_part import fields_in
from ..models.routing.trail import MOST_BEGINNINGS, Trail, trail_of

#: LMI's stateful sessions.
SESSION: Final = "x-amzn-sagemaker-session-id"
#: Prompts in larger bodies are not compared: finding the fields would take longer than 1 ms.
_MOST_BYTES: Final = 1 << 20
#: Longer names of sessions and responses count as none, as the router remembers them. SageMaker's have 256 at most.
_MOST_NAME_CHARS: Final = 256
_NONE: Final = Raw(b"")


class _Body(msgspec.Struct, frozen=True):
    """What the dialects make prompts of, and what the cached keys and values depend on besides."""

    model: Raw = _NONE
    adapters: Raw = _NONE
    adapter: Raw = _NONE
    tools: Raw = _NONE
    functions: Raw = _NONE
    system: Raw = _NONE
    instructions: Raw = _NONE
    messages: Raw = _NONE
    prompt: Raw = _NONE
    inputs: Raw = _NONE
    input: Raw = _NONE
    text_input: Raw = _NONE
    previous_response_id: str | None = None


#: The first objects of a list. A client may send hundreds of thousands, and those after these are skipped, which takes
#: a thirtieth of the time that it takes to make objects of them.
_First = msgspec.defstruct(
    "_First", [(f"element_{number}", Raw, _NONE) for number in range(MOST_BEGINNINGS)], array_like=True, frozen=True
)


class _Context(msgspec.Struct, frozen=True):
    """What is used of `protocol.Call.context`."""

    id: str = ""
    previous: Raw = _NONE


def trail_in(headers: Mapping[str, str], body: bytes, context: bytes, *, prompts: bool) -> Trail:
    """The trail of a request.

    Args:
        headers: by their names in lower case.
        context: see `protocol.Call`.
        prompts: whether prompts are compared; if not, only sessions are.
    """
    session = _short(headers.get(SESSION, ""))
    if not prompts:
        return Trail(follows=session, name=session)
    if len(body) + len(context) > _MOST_BYTES:
        return Trail(follows=session, name=session)
    if (read := fields_in(body, _Body)) is None:
        return trail_of((body,), follows=session, name=session)
    before = (fields_in(context, _Context) if context else None) or _Context()
    parts = [part for field in _prompt(read, before) for part in _elements(bytes(field))]
    root = tuple(map(bytes, (read.model, read.adapters, read.adapter)))
    follows, name = session or _short(read.previous_response_id or ""), session or before.id
    return trail_of(parts or (body,), root, follows=follows, name=name)


def _prompt(body: _Body, before: _Context) -> Iterator[Raw]:
    """The fields in the order in which a template renders them, or near it."""
    yield from (body.tools, body.functions, body.system, body.instructions, before.previous, body.messages)
    yield from (body.prompt, body.inputs, body.input, body.text_input)


def _elements(field: bytes) -> list[bytes]:
    """A list's first objects, such as messages, each by itself; of anything else, all of it."""
    if not field:
        return []
    if field[:1] != b"[" or not field[1:].lstrip().startswith(b"{"):
        return [field]
    first = msgspec.structs.astuple(msgspec.json.decode(field, type=_First))
    return [bytes(element) for element in first if element is not _NONE]


def _short(name: str) -> str:
    """A name that a client chose; "" if it is too long to be remembered."""
    return name if len(name) <= _MOST_NAME_CHARS else ""
