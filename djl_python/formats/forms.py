"""HTML form bodies: multipart/form-data (RFC 7578) and application/x-www-form-urlencoded.

Runs in the worker.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from ..core.budgets import FORM_FIELDS
from ..core.errors import PayloadError, TooLargeError
from .multipart import Begun, MultipartReader

MULTIPART = "multipart/form-data"
URLENCODED = "application/x-www-form-urlencoded"


def media_type(content_type: str) -> str:
    """The media type of a content-type: "Text/Plain; charset=utf-8" -> "text/plain"."""
    return content_type.partition(";")[0].strip().lower()


def is_form(content_type: str) -> bool:
    """Whether a body of this content-type is a form."""
    return media_type(content_type) in (MULTIPART, URLENCODED)


def parse_form(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """(name, value) of each field of a form body, in order; the value of a file is its content.

    Raises:
        TooLargeError: there are too many.
        PayloadError: a malformed multipart body, a field without a name, or a name that is not UTF-8.
    """
    if media_type(content_type) == URLENCODED:
        _check_fields(1 + body.count(b"&"))
        # latin-1 maps bytes to code points one to one, so that undecodable values come back as they were sent.
        pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
        try:
            return [(name.encode("latin-1").decode(), value.encode("latin-1")) for name, value in pairs]
        except UnicodeDecodeError as exc:
            raise PayloadError(f"a form field's name is not UTF-8: {exc.object!r}") from exc
    reader = MultipartReader(content_type)
    fields: list[tuple[str, list[bytes]]] = []
    for read in reader.feed(body):
        if isinstance(read, Begun):
            fields.append((read.name, []))
            _check_fields(len(fields))
        else:
            fields[-1][1].append(read)
    reader.end()
    return [(name, b"".join(pieces)) for name, pieces in fields]


def _check_fields(count: int) -> None:
    if wrong := FORM_FIELDS.excess(count, at_least=True):
        raise TooLargeError(f"the request body: {wrong}")
