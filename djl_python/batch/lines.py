"""The lines of a batch's input: OpenAI's requests, and plain prompts. Pure functions of files and bytes.

A line is one of:

- OpenAI's request, `{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}` (API reference,
  "The request input object");
- where `plain` is permitted, a JSON string, or a body: `{"prompt": ...}` for /v1/completions, `{"messages": ...}` for
  /v1/chat/completions, `{"input": ...}` for /v1/embeddings, `{"inputs": ...}` for LMI's /invocations. Where it has no
  custom_id, that is "line-" and the line's number.

Empty lines are skipped. Numbers of lines begin at 1 and count all lines of the file, as editors do.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from ..formats.json_framing import encode_json
from .turns import Turns

COMPLETIONS: Final = "/v1/completions"
CHATS: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
INVOCATIONS: Final = "/invocations"
#: The field that identifies a plain body -> its URL.
_PLAIN: Final = {"messages": CHATS, "prompt": COMPLETIONS, "input": EMBEDDINGS, "inputs": INVOCATIONS}
_PLAIN_EXPECTED: Final = "a string, or an object with custom_id and body, or with messages, prompt, input or inputs"
MAX_LINE_BYTES: Final = 64 << 20
#: How many faults of an input are listed; further ones are only counted.
MAX_FAULTS: Final = 100


class Fault(msgspec.Struct, frozen=True):
    """A fault of an input: an entry of OpenAI's `errors.data`."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class LineError(ValueError):
    """A line is not a request."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param

    def at(self, line: int) -> Fault:
        """The fault, with the number of its line."""
        return Fault(self.code, self.message, self.param, line)


@dataclass(frozen=True)
class RequestLine:
    """One line's request. `body` is JSON, an object; `model` is what it names, or ""."""

    line: int
    custom_id: str
    url: str
    body: bytes
    model: str = ""


@dataclass(frozen=True)
class Rules:
    """Rules for lines.

    Attributes:
        plain: whether plain prompts are permitted.
        urls: permitted URLs of requests; None: any.
        defaults: fields that are added to bodies without them.
        max_lines: how many there may be; None: any number.
    """

    plain: bool = False
    urls: Collection[str] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_lines: int | None = None


class _Peek(msgspec.Struct):
    """The fields of a body that are read: they choose the model, and streams are refused."""

    model: Any = ""
    stream: Any = None


def read_line(number: int, raw: bytes, rules: Rules) -> RequestLine:
    """The request of a line.

    Raises:
        LineError: it is none; `param` is the path of the field that is wrong.
    """
    line: Any = _decoded(raw)
    if isinstance(line, str) and rules.plain:
        line = {"prompt": line}
    if not isinstance(line, dict):
        expected = _PLAIN_EXPECTED if rules.plain else "an object with custom_id, method, url and body"
        raise LineError("invalid_json_line", f"expected {expected}")
    plain = next((name for name in _PLAIN if name in line), None)
    if rules.plain and plain and "body" not in line:
        custom_id = _text(line, "custom_id") if "custom_id" in line else f"line-{number}"
        fields = {name: value for name, value in line.items() if name != "custom_id"}
        return _request(number, custom_id, _PLAIN[plain], fields, rules)
    custom_id = _text(line, "custom_id")
    method = _text(line, "method")
    if method != "POST":
        raise LineError("invalid_method", f'method: expected "POST", got {method!r}', "method")
    url = _text(line, "url")
    if rules.urls is not None and url not in rules.urls:
        raise LineError("invalid_url", f"url: expected {' or '.join(rules.urls)}, got {url!r}", "url")
    body = line.get("body")
    if not isinstance(body, dict):
        raise LineError("missing_required_parameter", "body: required, expected an object", "body")
    return _request(number, custom_id, url, body, rules)


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise LineError("invalid_json_line", f"not JSON: {exc}") from exc


def _text(line: Mapping[str, Any], name: str) -> str:
    value = line.get(name)
    if not isinstance(value, str) or not value:
        raise LineError("missing_required_parameter", f"{name}: required, expected a non-empty string", name)
    return value


def _request(number: int, custom_id: str, url: str, body: dict[str, Any], rules: Rules) -> RequestLine:
    peek = msgspec.convert(body, _Peek)
    if peek.stream not in (None, False):
        raise LineError(
            "invalid_request", "body.stream: expected false: a file has no place for streams", "body.stream"
        )
    model = peek.model if isinstance(peek.model, str) else ""
    return RequestLine(number, custom_id, url, encode_json({**rules.defaults, **body}), model)


# ------------------------------------------------------------------------------------------------ files


@dataclass(frozen=True)
class InputFile:
    """An input file that has been read once.

    Attributes:
        sha256: of its content, in hexadecimal.
        numbers: of its lines that are not empty, in order; `offsets`: where they begin, in bytes.
        model: the model of the first request's body, or "".
        faults: the first MAX_FAULTS faults; `fault_count`: how many there are.
    """

    path: Path
    rules: Rules
    sha256: str
    numbers: array[int]
    offsets: array[int]
    model: str
    faults: tuple[Fault, ...]
    fault_count: int

    @property
    def count(self) -> int:
        """How many requests it has."""
        return len(self.numbers)

    def requests(self, indices: Collection[int] | range, file: BinaryIO) -> Iterator[tuple[int, RequestLine]]:
        """The requests of these indices (0: the first), which have been found right, with them."""
        for index in indices:
            file.seek(self.offsets[index])
            yield index, read_line(self.numbers[index], _read_line(file), self.rules)


def scan(path: Path, rules: Rules) -> InputFile:
    """Read an input from its first line to its last, and check every line. It takes as long as parsing the file.

    Raises:
        OSError: the file can't be read.
    """
    digest, seen = hashlib.sha256(), set[bytes]()
    numbers, offsets = array("q"), array("q")
    faults, count, model = list[Fault](), 0, ""

    def add(fault: Fault) -> None:
        nonlocal count
        count += 1
        if len(faults) < MAX_FAULTS:
            faults.append(fault)

    offset = number = 0
    turns = Turns()
    with path.open("rb") as file:
        while raw := _read_line(file):
            number, began, offset = number + 1, offset, offset + len(raw)
            turns.worked(len(raw))
            digest.update(raw)
            if not raw.strip():
                continue
            numbers.append(number)
            offsets.append(began)
            try:
                request = _new_line(number, raw, rules, seen)
            except LineError as exc:
                add(exc.at(number))
            else:
                model = model or request.model
    if not numbers:
        add(Fault("empty_file", "the input has no requests"))
    if rules.max_lines is not None and len(numbers) > rules.max_lines:
        add(Fault("too_many_requests", f"{len(numbers)} requests, expected at most {rules.max_lines}"))
    return InputFile(path, rules, digest.hexdigest(), numbers, offsets, model, tuple(faults), count)


def _new_line(number: int, raw: bytes, rules: Rules, seen: set[bytes]) -> RequestLine:
    """The request of a line; its custom_id must be new."""
    if len(raw) > MAX_LINE_BYTES:
        raise LineError("invalid_json_line", f"longer than {MAX_LINE_BYTES} bytes")
    request = read_line(number, raw, rules)
    key = hashlib.blake2b(request.custom_id.encode(), digest_size=16).digest()  # of ids that may be long
    if key in seen:
        raise LineError(
            "duplicate_custom_id", f"custom_id: {request.custom_id!r} is that of an earlier line too", "custom_id"
        )
    seen.add(key)
    return request


def _read_line(file: BinaryIO) -> bytes:
    """The next line with its end; for a line that is too long, a piece that exceeds the limit."""
    return file.readline(MAX_LINE_BYTES + 2)
