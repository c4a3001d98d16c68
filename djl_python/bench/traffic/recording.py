"""A recording of traffic: JSON lines, a head and then a request a line, in the order in which they came.

Secrets do not get in: of headers, only those that are named are kept (`KEPT_HEADERS`, and what the user adds), and of a
query the parameters whose names say that they are keys lose their values. Bodies are kept, kept with the text of some
fields replaced by letters x, or left out.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec

VERSION: Final = 1
#: Headers of requests that change an answer, and are no secrets.
KEPT_HEADERS: Final = frozenset(
    """
    accept accept-encoding content-encoding content-type model_name model_version traceparent x-max-items x-request-id
    x-synchronous x-amzn-sagemaker-session-id x-amzn-sagemaker-target-model
    """.split()
)
#: Headers that are never kept, whatever the user names.
SECRET_HEADERS: Final = frozenset("authorization api-key cookie proxy-authorization set-cookie x-api-key".split())
_SECRET_NAME: Final = re.compile(r"key|token|secret|password|credential|signature|auth", re.IGNORECASE)
_WORD: Final = re.compile(r"\w")
_REDACTED: Final = "redacted"


class RecordingHead(msgspec.Struct, frozen=True):
    """The first line. `began_s` is Unix time."""

    began_s: float
    target: str
    recording: int = VERSION


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, and what became of it.

    Attributes:
        at_s: when it came, in seconds from the beginning.
        path: with its query.
        body: as text, or in base64 if it is not UTF-8 (`binary`); None: left out, it had `body_bytes` bytes.
        status: of the answer; 0: there was none.
        duration_s: from the request's last byte to the answer's.
    """

    at_s: float
    method: str
    path: str
    headers: dict[str, str]
    body: str | None
    binary: bool = False
    body_bytes: int = 0
    status: int = 0
    answer_bytes: int = 0
    duration_s: float = 0.0

    @property
    def content(self) -> bytes:
        """The body's bytes."""
        body = self.body or ""
        return base64.b64decode(body) if self.binary else body.encode()


@dataclass(frozen=True)
class Privacy:
    """What is left out of a recording.

    Attributes:
        bodies: whether bodies are kept.
        redacted: names of fields, at any depth, whose text is replaced.
        headers: names of headers that are kept beside KEPT_HEADERS, in lower case.
    """

    bodies: bool = True
    redacted: Collection[str] = ()
    headers: Collection[str] = ()

    def kept_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers that may be recorded, by their names in lower case."""
        kept = (KEPT_HEADERS | set(self.headers)) - SECRET_HEADERS
        return {name.lower(): value for name, value in headers.items() if name.lower() in kept}

    def kept_path(self, path: str) -> str:
        """A path with its query, without the values of keys."""
        path, mark, query = path.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        if not any(_SECRET_NAME.search(name) for name, _ in pairs):
            return path + mark + query
        return (
            f"{path}?{urlencode([(name, _REDACTED if _SECRET_NAME.search(name) else value) for name, value in pairs])}"
        )

    def kept_body(self, body: bytes) -> dict[str, Any]:
        """The fields of an entry that have its body."""
        if not self.bodies:
            return {"body": None, "body_bytes": len(body)}
        if self.redacted:
            body = self._redact(body)
        try:
            return {"body": body.decode(), "body_bytes": len(body)}
        except UnicodeDecodeError:
            return {"body": base64.b64encode(body).decode(), "binary": True, "body_bytes": len(body)}

    def _redact(self, body: bytes) -> bytes:
        """A JSON body with other text in some fields; nothing of a body that is no JSON."""
        if not body:
            return body
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return b""
        return msgspec.json.encode(self._replaced(value, here=False))

    def _replaced(self, value: Any, *, here: bool) -> Any:
        if isinstance(value, dict):
            return {name: self._replaced(inner, here=here or name in self.redacted) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._replaced(inner, here=here) for inner in value]
        return _WORD.sub("x", value) if here and isinstance(value, str) else value


class Recorder:
    """Writes a recording, a whole line at a time. It replaces no file.

    Raises:
        OSError: the file exists, or can't be written.
    """

    def __init__(self, path: Path, head: RecordingHead) -> None:
        self._file: IO[bytes] = path.open("xb")
        self.count = 0
        self._write(head)

    def add(self, entry: RecordedRequest) -> None:
        """Write a request."""
        self._write(entry)
        self.count += 1

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _write(self, line: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


def read(path: Path) -> Iterator[RecordedRequest]:
    """The requests of a recording, by the time at which they came.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no recording; the message says which line.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                if number > 1:
                    yield msgspec.json.decode(line, type=RecordedRequest)
                elif msgspec.json.decode(line, type=RecordingHead).recording != VERSION:
                    raise ValueError(f"{path}: it was written by another version of this program")
            except msgspec.MsgspecError as exc:
                raise ValueError(f"{path}, line {number}: not a recording of bench --record: {exc}") from exc
