"""Responses that are kept: what the front end reads of a request, and the shapes of the pages about kept responses.

Used in the front end, in its event loop, and for large bodies in threads. Source: OpenAI's API reference (Responses).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ....core.errors import ParameterError
from ....formats.json_framing import encode_json
from ....formats.json_part import fields_in

#: The operations that the server answers from what it keeps.
RETRIEVE: Final = "retrieve_response"
DELETE: Final = "delete_response"
CANCEL: Final = "cancel_response"
INPUT_ITEMS: Final = "list_input_items"

#: The states in which a response stays.
ENDED: Final = frozenset({"completed", "incomplete", "failed", "cancelled"})
_ID_PREFIXES: Final = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_"}


class ResponseQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query for a response."""

    stream: (
        Annotated[bool, Meta(description="Send the events of a response made with background=true and stream=true.")]
        | None
    ) = None
    starting_after: Annotated[int, Meta(ge=0, description="The number of the event before the first one.")] | None = (
        None
    )
    include: Annotated[str, Meta(description="Without effect: a response has what its request included.")] | None = None
    include_obfuscation: bool | None = None


class InputItemsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query for a response's input."""

    limit: Annotated[int, Meta(ge=1, le=100, description="Items at most.")] = 20
    order: Annotated[Literal["asc", "desc"], Meta(description="asc: as they were sent.")] = "desc"
    after: Annotated[str, Meta(description="The id of the item before the first one.")] = ""
    include: Annotated[str, Meta(description="Without effect.")] | None = None


class ResponseDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A response is not kept any more."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItemList(msgspec.Struct, frozen=True, kw_only=True):
    """Items that a request sent."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool


class KeptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the front end reads of a request for a response. The worker refuses what is wrong."""

    input: msgspec.Raw = msgspec.Raw()
    previous_response_id: Any = None
    store: Any = None
    background: Any = None
    stream: Any = None

    @property
    def is_kept(self) -> bool:
        """Whether the response is to be kept."""
        return self.store is None or self.store is True

    @property
    def items(self) -> bytes:
        """The items of its input, as a JSON array."""
        given = bytes(self.input).strip()
        if given.startswith(b'"'):
            return b'[{"type":"message","role":"user","content":%b}]' % given
        return given if given.startswith(b"[") else b"[]"


class _Output(msgspec.Struct, frozen=True):
    output: msgspec.Raw = msgspec.Raw(b"[]")


class _Completed(msgspec.Struct, frozen=True):
    response: msgspec.Raw


class _Stated(msgspec.Struct, frozen=True):
    id: str
    status: str


class _Detail(msgspec.Struct, frozen=True):
    message: str
    type: str


class _Error(msgspec.Struct, frozen=True):
    error: _Detail


def read_kept(body: bytes) -> KeptRequest | None:
    """What a body says about keeping; None: it is no JSON object, as the worker will say."""
    return fields_in(body, KeptRequest)


def status_of(response: bytes) -> str:
    """The status of a response; "": the body is no response, which a user's handler may answer."""
    fields = fields_in(response, _Stated)
    return "" if fields is None else fields.status


def response_in(event: bytes) -> bytes:
    """The response in the event that ends a stream; b"": that event has none."""
    fields = fields_in(event.partition(b"data: ")[2].strip(), _Completed)
    return b"" if fields is None else bytes(fields.response)


def all_items(items: bytes, response: bytes) -> bytes:
    """The input items of a response and its output, as the inside of a JSON array."""
    output = bytes(msgspec.json.decode(response, type=_Output).output)
    return b",".join(filter(None, (_inside(items), _inside(output))))


def context_of(response_id: str, previous: bytes, *, kept: bool) -> bytes:
    """What the worker is to know of a request.

    Args:
        response_id: the response's.
        previous: the items before its own, as the inside of a JSON array; b"": none.
        kept: whether the response will be kept.
    """
    return b'{"id":%b,"kept":%b,"previous":[%b]}' % (encode_json(response_id), encode_json(kept), previous)


def shown_items(items: bytes, response_id: str) -> list[dict[str, Any]]:
    """The input items of a response as clients see them: each with a type and an id, and messages with parts."""
    made = []
    for i, given in enumerate(msgspec.json.decode(items)):
        item = {"type": "message", **given}
        name = f"{_ID_PREFIXES.get(item['type'], 'item_')}{response_id.removeprefix('resp_')}{i:05}"
        content = item.get("content")
        if item["type"] == "message" and isinstance(content, str):
            kind = "output_text" if item.get("role") == "assistant" else "input_text"
            extra: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
            item["content"] = [{"type": kind, "text": content, **extra}]
        if item["type"] == "message":
            item.setdefault("status", "completed")
        made.append({**item, "id": item.get("id") or name})
    return made


def with_status(response: bytes, status: str) -> bytes:
    """A response without output, in another state."""
    return encode_json({**msgspec.json.decode(response), "status": status})


def failed_with(response: bytes, status: int, body: bytes) -> bytes:
    """A response that has failed with this answer, an error in OpenAI's shape."""
    fields = fields_in(body, _Error)
    detail = _Detail("the answer ended before it was complete", "server_error") if fields is None else fields.error
    code = "invalid_prompt" if detail.type == "invalid_request_error" else "server_error"
    error = {"code": "rate_limit_exceeded" if status == 429 else code, "message": detail.message}
    return encode_json({**msgspec.json.decode(response), "status": "failed", "error": error})


def check_query(query: ResponseQuery) -> None:
    """Refuse what has no meaning.

    Raises:
        ParameterError: a place in a stream, and no stream.
    """
    if query.starting_after is not None and not query.stream:
        raise ParameterError("starting_after: only with stream=true", "starting_after")


def queued_events(response: bytes) -> bytes:
    """The events with which the stream of a response in the background begins; those of its worker follow."""
    kinds = ("response.created", "response.queued")
    return b"".join(state_event(kind, number, response) for number, kind in enumerate(kinds))


#: How many events the front end makes itself, before the worker's.
QUEUED_EVENTS: Final = 2


def failed_event(number: int, response: bytes) -> bytes:
    """The last event of a response that has failed without its worker."""
    return state_event("response.failed", number, response)


def state_event(kind: str, number: int, response: bytes) -> bytes:
    """An event that shows the whole response."""
    data = encode_json({"type": kind, "sequence_number": number, "response": msgspec.Raw(response)})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _inside(array: bytes) -> bytes:
    return array.strip()[1:-1].strip()
