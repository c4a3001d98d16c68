"""multipart/form-data (RFC 7578), read as it arrives. Pure: what was fed goes in, what it means comes out.

Runs in the worker over whole bodies; over uploads in the front end, piece by piece. The standard library's mail parser
is no help here: it translates line ends, which damages files.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from ..core.errors import PayloadError

#: Bytes of a part's headers, with the padding before them.
MAX_HEAD_BYTES: Final = 16 << 10
_PARAMETER: Final = re.compile(r';\s*([\w*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))')
_END: Final = b"--"


@dataclass(frozen=True)
class Begun:
    """A part begins. `filename` is "" in a part without a file name."""

    name: str
    filename: str = ""


class _State(enum.Enum):
    """Where the reader is: outside of parts, behind a delimiter, in a part's data, or behind the last delimiter."""

    PREAMBLE = enum.auto()
    HEAD = enum.auto()
    DATA = enum.auto()
    EPILOGUE = enum.auto()


class MultipartReader:
    """Reads one body. Holds back no more than a delimiter's length of data, or a part's headers.

    Raises:
        PayloadError: the content-type names no boundary, or one that no body can have.
    """

    def __init__(self, content_type: str) -> None:
        boundary = _parameters(content_type).get("boundary")
        if not boundary:
            raise PayloadError("multipart/form-data without a boundary in its content-type")
        try:
            self._delimiter = b"\r\n--" + boundary.encode("latin-1")
        except UnicodeEncodeError:
            raise PayloadError(f"multipart/form-data: expected a boundary in ASCII, got {boundary[:100]!r}") from None
        # A delimiter is preceded by the line end of the part before it, which is not that part's data.
        self._held = b"\r\n"
        self._state = _State.PREAMBLE

    def feed(self, piece: bytes) -> Iterator[Begun | bytes]:
        """What a piece of the body means: parts that begin, each followed by its data, in any number of pieces.

        Raises:
            PayloadError: the body is malformed, or a part's name is missing or not UTF-8.
        """
        held = self._held + piece
        at = 0
        while self._state is not _State.EPILOGUE:
            if self._state is _State.HEAD:
                begun, at = self._head(held, at)
                if begun is None:
                    break
                yield begun
                continue
            delimiter_at = held.find(self._delimiter, at)
            # What may be the beginning of a delimiter is held back.
            end = delimiter_at if delimiter_at >= 0 else max(at, len(held) - len(self._delimiter) + 1)
            if self._state is _State.DATA and end > at:
                yield held[at:end]
            at = end
            if delimiter_at < 0:
                break
            at += len(self._delimiter)
            self._state = _State.HEAD
        self._held = b"" if self._state is _State.EPILOGUE else held[at:]

    def end(self) -> None:
        """Note that the body is complete.

        Raises:
            PayloadError: it is not.
        """
        if self._state is _State.HEAD and self._delimiter in self._held:
            raise PayloadError("multipart/form-data: a part without an empty line after its headers")
        if self._state is not _State.EPILOGUE:
            raise PayloadError("multipart/form-data: the closing boundary is missing, the body is cut off")

    def _head(self, held: bytes, at: int) -> tuple[Begun | None, int]:
        """The part whose headers begin at `at`, behind a delimiter, and where its data begins; None: not known yet."""
        if held.startswith(_END, at):
            self._state = _State.EPILOGUE
            return None, at
        # What follows the boundary is optional padding and a line end, headers, an empty line, the data.
        end = held.find(b"\r\n\r\n", at)
        if (end if end >= 0 else len(held)) - at > MAX_HEAD_BYTES:
            raise PayloadError(f"multipart/form-data: a part with more than {MAX_HEAD_BYTES} bytes of headers")
        if end < 0:
            return None, at
        head = held[at:end]
        if self._delimiter in head:
            raise PayloadError("multipart/form-data: a part without an empty line after its headers")
        self._state = _State.DATA
        return _begun(head), end + len(b"\r\n\r\n")


def _begun(head: bytes) -> Begun:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            parameters = _parameters(_text(value))
            if "name" in parameters:
                return Begun(parameters["name"], parameters.get("filename", ""))
    raise PayloadError('multipart/form-data: a part without content-disposition: form-data; name="..."')


def _parameters(value: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(value):
        # Browsers escape a quote in a name as %22, curl as \".
        parameters[name.lower()] = re.sub(r"\\(.)", r"\1", quoted).replace("%22", '"') if quoted else bare
    for extended in [name for name in parameters if name.endswith("*")]:
        parameters[extended.removesuffix("*")] = unquote(parameters[extended].rpartition("'")[2])
    return parameters


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise PayloadError(f"a form field's name is not UTF-8: {data!r}") from exc
