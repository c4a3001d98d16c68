"""One line per record on stderr, as text or as JSON: `2026-11-20T10:00:00Z INFO model [request] message`.

Runs in every process; the command line configures it, and each child process does so first. The word after the level
names the process or the model: `-` in the front end, `llama/0` in worker 0 of `llama`, `llama/0/engine` in its engine;
a record about a model in the front end names the model. A request's id follows in brackets: the record's own
(`extra={"request_id": ...}`), or the one that `about` sets.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:  # type checkers alone have it
    from _typeshed import ReadableBuffer

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
_CHATTY: Final = ("asyncio", "tornado")
#: The level that logs nothing.
OFF: Final = "off"
_NOTHING: Final = logging.CRITICAL + 10
#: Names that Python does not have. Nothing here is worse than an error.
_LOG4J: Final = {"trace": logging.DEBUG, "warn": logging.WARNING, "fatal": _NOTHING, OFF: _NOTHING}
#: The request that this task or thread works on: its id, and that of its trace; "" where there is none.
_request: ContextVar[tuple[str, str]] = ContextVar("request", default=("", ""))


class LogFormatter(logging.Formatter):
    """Formats records with the time in UTC, to the second; tracebacks and further lines follow unchanged.

    Args:
        name: the word for a record that names no model.
    """

    format_name = "text"

    def __init__(self, name: str) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(model)s %(request)s%(message)s", "%Y-%m-%dT%H:%M:%SZ", defaults={"model": name}
        )
        self.converter = time.gmtime
        self.name = name

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without the traceback."""
        request_id, _ = request_of(record)
        record.request = f"[{request_id}] " if request_id else ""
        return super().formatMessage(record)


class JsonFormatter(LogFormatter):
    """Formats each record as an object on one line: time (UTC, to the millisecond), level, name (as in text), logger,
    message; request_id, trace_id and exception (the traceback) where there is one; and the message's arguments where
    they have names, such as a request's status.
    """

    format_name = "json"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        import msgspec  # only now: the command line logs text, and does not wait for it

        self._encode = msgspec.json.Encoder(enc_hook=str).encode

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        request_id, trace_id = request_of(record)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "name": getattr(record, "model", self.name),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id:
            line["request_id"] = request_id
        if trace_id:
            line["trace_id"] = trace_id
        if isinstance(record.args, Mapping):
            line |= {key: value for key, value in record.args.items() if key not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._encode(line).decode()


_FORMATTERS: Final = {formatter.format_name: formatter for formatter in (LogFormatter, JsonFormatter)}


def request_of(record: logging.LogRecord) -> tuple[str, str]:
    """The ids of a record's request and of its trace; "" for a missing one."""
    request_id, trace_id = _request.get()
    return getattr(record, "request_id", request_id), getattr(record, "trace_id", trace_id)


def work_on(request_id: str, trace_id: str = "") -> None:
    """From now on, records of this task or thread belong to this request."""
    _request.set((request_id, trace_id))


@contextlib.contextmanager
def about(request_id: str) -> Iterator[None]:
    """Records of this block belong to this request."""
    token = _request.set((request_id, ""))
    try:
        yield
    finally:
        _request.reset(token)


def request_id() -> str:
    """The id of the request that this task or thread works on, or ""."""
    return _request.get()[0]


class _Handler(logging.StreamHandler[TextIO]):
    """Writes records, and passes them to `_readers`."""

    def format(self, record: logging.LogRecord) -> str:
        """The text that is about to be written."""
        text = super().format(record)
        for read in _readers:
            read(text)
        return text

    def write(self, text: str) -> None:
        """Write text that has been formatted elsewhere."""
        with self.lock or contextlib.nullcontext():
            self.stream.write(text)
            self.flush()


_readers: Final[list[Callable[[str], None]]] = []


def add_reader(read: Callable[[str], None]) -> None:
    """Call `read` with every record's text from now on, in the thread that logs; it must not block, log or raise."""
    _readers.append(read)


def remove_reader(read: Callable[[str], None]) -> None:
    """Undo `add_reader`."""
    _readers.remove(read)


def pass_on(text: str) -> None:
    """Write lines of a process on another machine where this one logs, and to its readers; `text` ends them."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            handler.write(text)
    for read in _readers:
        read(text.removesuffix("\n"))


def configure(level: str, stream: TextIO | None = None, name: str = "-", log_format: str = "text") -> None:
    """Log records of at least `level` (one of `LEVELS`) to `stream`, by default stderr; for `name` see `Formatter`.

    With the format "json" and no `stream`, what this process prints is logged too, a record for each line: then all
    that it writes to stderr is JSON, but for what libraries write there past Python.
    """
    handler = _Handler(stream)
    handler.setFormatter(_FORMATTERS[log_format](name))
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)
    if log_format == "json" and stream is None:
        _log_what_is_printed()


def set_level(name: str) -> None:
    """Log records of at least this level from now on. `name`: one of `LEVELS`, or log4j's, in any case.

    Processes that are started from now on get it too.
    """
    number = _LOG4J.get(name.lower()) or logging.getLevelNamesMapping()[name.upper()]
    logging.getLogger().setLevel(number)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(max(logging.WARNING, number))


def level() -> str:
    """The lowest level that this process logs, one of `LEVELS`, or `OFF`."""
    number = logging.getLogger().level
    names = logging.getLevelNamesMapping()
    return next((name for name in LEVELS if number <= names[name.upper()]), OFF)


def name() -> str:
    """The name of this process in its log lines, or `-`."""
    formatter = _formatter()
    return "-" if formatter is None else formatter.name


def log_format() -> str:
    """What this process logs in, one of `FORMATS`."""
    formatter = _formatter()
    return LogFormatter.format_name if formatter is None else formatter.format_name


def _formatter() -> LogFormatter | None:
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return next((formatter for formatter in formatters if isinstance(formatter, LogFormatter)), None)


class _Printed(io.RawIOBase):
    """Logs each line that is written, whatever level is logged: what is printed is always shown."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._name = name
        self._descriptor = descriptor
        self._rest = b""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: ReadableBuffer, /) -> int:
        given = bytes(data)
        *lines, self._rest = (self._rest + given).split(b"\n")
        for line in lines:
            if text := line.decode(errors="backslashreplace").rstrip():
                self._log(text)
        return len(given)

    def _log(self, text: str) -> None:
        record = logging.LogRecord(self._name, logging.INFO, "", 0, text, None, None)
        for handler in logging.getLogger().handlers:
            handler.handle(record)


def _log_what_is_printed() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:  # it was closed before the process began
            printed = _Printed(name, stream.fileno())
            setattr(sys, name, io.TextIOWrapper(printed, "utf-8", "backslashreplace", write_through=True))
    sys.excepthook = lambda kind, error, trace: logging.getLogger("python").critical(
        "%s", error, exc_info=(kind, error, trace)
    )
