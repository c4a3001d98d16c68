"""A request's body as a JSON object, and the header that names ignored parameters: the same in every API.

Runs in the worker, and in the front end where the body names the model.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from ...compat.pair_list import PairList
from ...config import ModelConfig
from ...core import budgets
from ...core.errors import MediaTypeError, PayloadError
from ...formats.forms import media_type
from ...formats.json_framing import JSON
from ...formats.json_size import refuse_excess
from ...inputs import Input

IGNORED_HEADER: Final = "x-ignored-parameters"
#: Proxies refuse long headers.
_HEADER_CHARS: Final = 1000
_SHOWN_CHARS: Final = 60


def json_object(inputs: Input, model: ModelConfig) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        MediaTypeError: the content type is not JSON.
        TooLargeError: it has more values than option.max_request_values.
        PayloadError: not JSON, or not an object.
    """
    content_type = media_type(inputs.get_property("content-type") or JSON)
    if content_type != JSON and not content_type.endswith("+json"):
        raise MediaTypeError(f"Expected request with `Content-Type: {JSON}`, got {content_type}")
    return _checked(read_json(inputs, model.option.max_request_values))


def read_json(inputs: Input, most_values: int, key: str | None = None) -> Any:
    """A content entry as JSON; without `key`, the body.

    Raises:
        TooLargeError: it has more values than `most_values`.
        PayloadError: not JSON.
    """
    if len(inputs.body) >= most_values:  # every entry is a part of it
        refuse_excess(inputs.get_as_bytes(key) or b"", most_values, "the request body" if key is None else key)
    return inputs.get_as_json(key)


def object_of(body: bytes, most_values: int = budgets.PAGE_VALUES.most) -> dict[str, Any]:
    """Bytes as a JSON object, whatever their content type.

    Raises:
        TooLargeError: it has more values than `most_values`.
        PayloadError: not JSON, or not an object.
    """
    refuse_excess(body, most_values)
    inputs = Input()
    inputs.content.add("data", body)
    return _checked(inputs.get_as_json())


def with_json(inputs: Input, data: bytes, behind: bytes = b"") -> Input:
    """A copy of the call with another body: JSON, followed by the bytes `behind`."""
    made = copy.copy(inputs)
    made.body = data + behind
    made.content = PairList()
    made.content.add("data", data)
    made.properties = {**inputs.properties, "content-type": JSON, "content-length": str(len(made.body))}
    return made


def _checked(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise PayloadError(f"the request body: expected a JSON object, got {shown(body)}")
    return body


def shown(value: Any) -> str:
    """A JSON value for an error message, cut to `_SHOWN_CHARS`."""
    try:
        text = msgspec.json.encode(_beginning(value, iter(range(_SHOWN_CHARS)))).decode()
    except RecursionError:
        return "what is nested too deeply"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def _beginning(value: Any, left: Iterator[int]) -> Any:
    """A part of a value whose JSON has the same first `left` characters."""
    if isinstance(value, str):
        return value[:_SHOWN_CHARS]
    if isinstance(value, list):
        return [_beginning(item, left) for item, _ in zip(value, left, strict=False)]
    if isinstance(value, dict):
        items = zip(value.items(), left, strict=False)
        return {str(name)[:_SHOWN_CHARS]: _beginning(item, left) for (name, item), _ in items}
    return value


def first_names(names: AbstractSet[str]) -> list[str]:
    """Names in order, at most `IGNORED_NAMES`."""
    most = budgets.IGNORED_NAMES
    return sorted(names) if len(names) <= most else heapq.nsmallest(most, names)


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The response header that names parameters without effect; {} without names.

    The names are the client's, so they are escaped: none can break the header.
    """
    value = ",".join(name if name.isascii() and name.isprintable() else ascii(name) for name in names)
    if not value:
        return {}
    return {IGNORED_HEADER: value if len(value) <= _HEADER_CHARS else f"{value[:_HEADER_CHARS]}..."}
