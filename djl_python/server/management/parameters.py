"""The parameters of a management request: from its query, or from a body of JSON or of a form. The query wins.

Runs in the front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from ...core.errors import MediaTypeError, PayloadError
from ...core.names import did_you_mean
from ...dialects.shared.request_body import object_of
from ...dialects.shared.typed_body import read_body
from ...formats.forms import URLENCODED, media_type
from ...formats.json_framing import JSON
from ..http.requests.request_head import RequestHead

T = TypeVar("T", bound=msgspec.Struct)

_PAYLOAD: Final = ("url",)


def read_parameters(into: type[T], head: RequestHead, body: bytes, *, others: bool = False) -> T:
    """The parameters as an `into`.

    Args:
        others: whether there may be others too (`given_parameters`).

    Raises:
        PayloadError, ParameterError, MediaTypeError: one has a wrong value, or is unknown, or the body can't be read.
    """
    given = given_parameters(head, body)
    known = [field.encode_name for field in msgspec.structs.fields(into)]
    for name in given:
        if name not in known and not others:
            raise PayloadError(
                f"{name}: there is no such parameter{did_you_mean(name, known)} (there is {', '.join(known)})", name
            )
    return read_body({name: value for name, value in given.items() if value != ""}, into, _PAYLOAD, strict=False)


def given_parameters(head: RequestHead, body: bytes) -> dict[str, Any]:
    """All parameters, as they are.

    Raises:
        PayloadError, MediaTypeError: the body can't be read.
    """
    return {**_in_body(head.headers, body), **dict(head.query)}


def _in_body(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    kind = media_type(headers.get("content-type", JSON))
    if kind == JSON or body.lstrip().startswith(b"{"):  # curl -d calls whatever it sends a form
        return object_of(body)
    if kind != URLENCODED:
        raise MediaTypeError(f"expected parameters in the query, or in a body of {JSON} or {URLENCODED}, got {kind}")
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
