"""What a handler returns: status, properties (headers) and content, in DJL's form.

Runs in the worker. The worker sends the values of the content one after the other as the body; `code` is the HTTP
status, `properties` are headers. Without a Content-Type property the first value decides: application/json for a value
encoded as JSON, text/plain for str, application/octet-stream for bytes.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

from .compat.pair_list import PairList
from .formats.json_framing import JSON, JSONLINES, encode_finite_json, encode_jsonlines
from .usercode.batch_keys import batch_key

TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"
NDLIST: Final = "tensor/ndlist"
NPZ: Final = "tensor/npz"

StreamFormatter = Callable[[Any], "str | bytes"]


def stream_line(item: Any) -> bytes:
    r"""The default form of a streamed item: `{"outputs": item}` and a line end."""
    return encode_jsonlines({"outputs": item})


def encode_item(item: Any) -> bytes:
    """A streamed item without a wrapper: str and bytes unchanged, anything else as a JSON line."""
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    return encode_jsonlines(item)


def item_content_type(item: Any) -> str:
    """The content-type of what `encode_item` returns."""
    if isinstance(item, str):
        return TEXT
    return BYTES if isinstance(item, bytes | bytearray | memoryview) else JSONLINES


class Output:
    """One answer, or the answers of a dynamic batch (entries added with `batch_index`).

    Attributes:
        code: HTTP status.
        message: the text that goes with `code`; it is the body of an error without content.
        properties: response headers.
        content: (key, bytes) pairs.
        content_type: content-type of the content where no property sets it; None while there is no content.
        item_content_types: the same for the items of a dynamic batch, by index.
        stream_content: what `add_stream_content` was given, or None.
    """

    def __init__(self, code: int = 200, message: str = "OK") -> None:
        self.code = code
        self.message = message
        self.properties: dict[str, str] = {}
        self.content = PairList()
        self.content_type: str | None = None
        self.item_content_types: dict[int, str] = {}
        self.stream_content: Iterable[Any] | AsyncIterable[Any] | None = None
        self.stream_formatter: StreamFormatter = stream_line
        self._finalizer: Callable[[], Any] | None = None

    def __str__(self) -> str:
        entries = ", ".join(f"{key}: {len(value)} bytes" for key, value in self.content)
        return f"Output(code={self.code}, message={self.message!r}, properties={self.properties}, content=[{entries}])"

    def set_code(self, code: int) -> Self:
        """Set the HTTP status."""
        self.code = code
        return self

    def set_message(self, message: str) -> Self:
        """Set the message."""
        self.message = message
        return self

    def error(
        self, error: str, code: int = 424, message: str = "invoke handler failure", batch_index: int | None = None
    ) -> Self:
        """Make this an error: `{"code", "message", "error"}` with HTTP status `code`.

        With `batch_index`, that item of the batch fails and the others don't.
        """
        self.add_as_json({"code": code, "message": message, "error": error}, batch_index=batch_index)
        if batch_index is None:
            self.code, self.message = code, message
            return self.add_property("content-type", JSON)
        self.add_property(batch_key("code", batch_index), code)
        return self.add_property(batch_key("content-type", batch_index), JSON)

    def add_property(self, key: str, val: Any) -> Self:
        """Set a response header."""
        self.properties[key] = str(val)
        return self

    # ------------------------------------------------------------------------------------ content

    def add(self, value: Any, key: str | None = None, batch_index: int | None = None) -> Self:
        """Append a value: str as UTF-8, bytes as they are, anything else as JSON.

        `batch_index` says which item of a dynamic batch it answers.
        """
        if isinstance(value, str):
            return self._append(value.encode(), key, batch_index, TEXT)
        if isinstance(value, bytes | bytearray | memoryview):
            return self._append(bytes(value), key, batch_index, BYTES)
        return self.add_as_json(value, key, batch_index)

    def add_as_json(self, val: Any, key: str | None = None, batch_index: int | None = None) -> Self:
        """Append a value as JSON; numpy and torch values become numbers and lists.

        Raises:
            TypeError: something in it has no JSON form.
            ValueError: a number in it is NaN or infinite.
        """
        return self._append(encode_finite_json(val), key, batch_index, JSON)

    def add_as_numpy(self, np_list: Any, key: str | None = None, batch_index: int | None = None) -> Self:
        """Append an array, or a list of them, in DJL's NDList format."""
        from .compat.np_util import to_nd_list

        return self._append(to_nd_list(np_list), key, batch_index, NDLIST)

    def add_as_npz(self, np_list: Any, key: str | None = None, batch_index: int | None = None) -> Self:
        """Append an array, or a list of them, in .npz format."""
        from .compat.np_util import to_npz

        return self._append(to_npz(np_list), key, batch_index, NPZ)

    def add_stream_content(
        self,
        stream_content: Iterable[Any] | AsyncIterable[Any],
        output_formatter: StreamFormatter | None = stream_line,
    ) -> Self:
        """Stream the items of an iterator, synchronous or asynchronous, each as soon as it is ready.

        `output_formatter(item)` returns the str or bytes to send; the default sends `{"outputs": item}` lines as
        application/jsonlines. None: str and bytes as they are, anything else as a JSON line.
        """
        self.stream_content = stream_content
        self.stream_formatter = output_formatter or encode_item
        if output_formatter is stream_line:
            self.content_type = self.content_type or JSONLINES
        return self

    @staticmethod
    def binary_encode(prediction: Mapping[str, Any]) -> bytes:
        """DJL's encoding of one step's result of a rolling batch: a count, then keys and values as sized text.

        For handlers that batch by themselves and their tests: the server takes no steps of a handler.
        """
        sized = (str(part).encode() for pair in prediction.items() for part in pair)
        return struct.pack(">h", len(prediction)) + b"".join(struct.pack(">h", len(part)) + part for part in sized)

    def _append(self, value: bytes, key: str | None, batch_index: int | None, content_type: str) -> Self:
        if batch_index is not None:
            key = batch_key(key or "data", batch_index)
            self.item_content_types.setdefault(batch_index, content_type)
        self.content.add(key, value)
        self.content_type = self.content_type or content_type
        return self

    # ------------------------------------------------------------------------------------ after the answer

    def finalize(self, fn: Callable[..., Any], *args: Any) -> Self:
        """Have `fn(*args)` called once the answer has been sent, or sending it has failed."""
        self._finalizer = lambda: fn(*args)
        return self

    def execute_finalize(self) -> Any:
        """Call the function given to `finalize`, at most once, and return its result; None if there is none."""
        finalizer, self._finalizer = self._finalizer, None
        return finalizer() if finalizer is not None else None

    @property
    def has_finalizer(self) -> bool:
        """Whether `execute_finalize` has something to do."""
        return self._finalizer is not None


def concatenate(values: Sequence[bytes]) -> bytes:
    """The values of a content joined to a body."""
    return values[0] if len(values) == 1 else b"".join(values)
