"""A request's body as a JSON object, and the header that names ignored parameters: the same in every API.

Runs in the worker, and in the front end where the body names the model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ...core.errors import MediaTypeError, PayloadError
from ...formats.forms import media_type
from ...formats.json_framing import JSON
from ...inputs import Input
from ...pair_list import PairList

IGNORED_HEADER: Final = "x-ignored-parameters"
#: Proxies refuse long headers.
_HEADER_CHARS: Final = 1000
_SHOWN_CHARS: Final = 60


def json_object(inputs: Input) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        MediaTypeError: there is a content type, and it is not JSON.
        PayloadError: not JSON, or not an object.
    """
    content_type = media_type(inputs.get_property("content-type") or JSON)
    if content_type != JSON and not content_type.endswith("+json"):
        raise MediaTypeError(f"Expected request with `Content-Type: {JSON}`, got {content_type}")
    return _checked(inputs.get_as_json())


def object_of(body: bytes) -> dict[str, Any]:
    """Bytes as a JSON object, whatever their content type.

    Raises:
        PayloadError: not JSON, or not an object.
    """
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
        text = msgspec.json.encode(value).decode()
    except RecursionError:
        return "what is nested too deeply"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The response header that names what has no effect; {} without names.

    The names are the client's, so they are escaped: none can break the header.
    """
    value = ",".join(name if name.isascii() and name.isprintable() else ascii(name) for name in names)
    if not value:
        return {}
    return {IGNORED_HEADER: value if len(value) <= _HEADER_CHARS else f"{value[:_HEADER_CHARS]}..."}
