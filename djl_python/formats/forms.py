"""HTML form bodies: multipart/form-data (RFC 7578) and application/x-www-form-urlencoded.

Runs in the worker. The standard library's mail parser is no help here: it translates line ends, which damages files.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from ..core.errors import PayloadError

MULTIPART = "multipart/form-data"
URLENCODED = "application/x-www-form-urlencoded"

_PARAMETER = re.compile(r';\s*([\w*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))')


def media_type(content_type: str) -> str:
    """The media type of a content-type: "Text/Plain; charset=utf-8" -> "text/plain"."""
    return content_type.partition(";")[0].strip().lower()


def parse_form(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """(name, value) of each field of a form body, in order; the value of a file is its content.

    Raises:
        PayloadError: a malformed multipart body, a field without a name, or a name that is not UTF-8.
    """
    if media_type(content_type) == URLENCODED:
        # latin-1 maps bytes to code points one to one, so that undecodable values come back as they were sent.
        pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
        return [(_text(name.encode("latin-1")), value.encode("latin-1")) for name, value in pairs]
    return _parse_multipart(content_type, body)


def _parse_multipart(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    boundary = _parameters(content_type).get("boundary")
    if not boundary:
        raise PayloadError("multipart/form-data without a boundary in its content-type")
    # Every delimiter but the first is preceded by the line end of the part before it, which is not that part's data.
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"))
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise PayloadError("multipart/form-data: the closing boundary is missing, the body is cut off")
    return [_parse_part(piece) for piece in pieces[1:-1]]


def _parse_part(piece: bytes) -> tuple[str, bytes]:
    # What follows the boundary is optional padding and a line end, headers, an empty line, the data.
    head, separator, data = piece.partition(b"\r\n\r\n")
    if not separator:
        raise PayloadError("multipart/form-data: a part without an empty line after its headers")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            field = _parameters(_text(value)).get("name")
            if field is not None:
                return field, data
    raise PayloadError('multipart/form-data: a part without content-disposition: form-data; name="..."')


def _parameters(value: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(value):
        # Browsers escape a quote in a name as %22, curl as \".
        found[name.lower()] = re.sub(r"\\(.)", r"\1", quoted).replace("%22", '"') if quoted else bare
    if "name*" in found:
        found["name"] = unquote(found["name*"].rpartition("'")[2])
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise PayloadError(f"a form field's name is not UTF-8: {data!r}") from exc
