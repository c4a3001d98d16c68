"""What a handler is given: one call, or one dynamic batch of calls, in DJL's form.

Runs in the worker. The front end's `Call` becomes an `Input` the way DJL's own front end does it: query parameters
become content entries, headers become properties, form fields become content entries by name, and any other body is
the content entry "data".
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .compat.pair_list import PairList
from .core.call_trace import CallTrace
from .core.call_usage import CallUsage
from .core.errors import DecodeError
from .core.turns.precedence import ANY
from .formats.csv_reading import read_dicts
from .formats.forms import is_form, media_type, parse_form
from .ipc.protocol import Call
from .usercode.batch_keys import item_of

BATCH_SIZE = "batch_size"

#: What Pillow's many formats raise for bytes that are no image, or a part of one.
_MALFORMED_IMAGE: Final = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, SyntaxError),
    *(RuntimeError, MemoryError, struct.error, zlib.error),
)


class Input:
    """One call, or one dynamic batch of calls.

    Attributes:
        function_name: the handler function this call is for ("handle" unless option.handler says otherwise).
        properties: the request's headers, names in lower case, overridden by the model's own properties.
        content: what was sent: (name, bytes) pairs.
        body: the body as it was sent, whatever its content-type says.
        bodies: the bodies of a batch's calls, in order.
        operation, dialect: which request of which API this is, from the route table.
        path: the path of the URL.
        model_name, model_version: the model that answers.
        request_id: the client's x-request-id, or a generated one.
        waited_s: how long the call waited for this worker, in seconds.
        key_name: that of the API key that the request came with; "" without keys.
        is_manager: whether its bearer may see what others have made; so may everyone, without keys.
        precedence: its tenant and priority, for the engine's scheduler.
        context: what the front end adds to the body; see `protocol.Call`.
        trace: takes events and attributes for the call's span; None: the call is not traced.
        usage: takes the numbers of its tokens; None: nobody counts them.
    """

    def __init__(self) -> None:
        self.function_name: str | None = None
        self.properties: dict[str, str] = {}
        self.content = PairList()
        self.body = b""
        self.bodies: tuple[bytes, ...] = ()
        self.operation = ""
        self.dialect = ""
        self.path = ""
        self.model_name = ""
        self.model_version = ""
        self.request_id = ""
        self.waited_s = 0.0
        self.key_name = ""
        self.is_manager = True
        self.precedence = ANY
        self.context = b""
        self.trace: CallTrace | None = None
        self.usage: CallUsage | None = None

    @classmethod
    def from_call(
        cls,
        call: Call,
        properties: Mapping[str, str] | None = None,
        *,
        model_name: str = "",
        model_version: str = "",
        function_name: str | None = None,
        request_id: str = "",
    ) -> Input:
        """Make the Input that DJL's front end makes of a request.

        `properties` are the model's; they override headers of the same name, so that no client can change the model's
        configuration.

        Raises:
            DecodeError: the content-type is a form's, and the body is not a form.
        """
        self = cls()
        self.function_name = function_name
        self.operation, self.dialect, self.path, self.body = call.operation, call.dialect, call.path, call.body
        self.model_name, self.model_version = model_name, model_version
        self.request_id = request_id or call.headers.get("x-request-id", "")
        self.waited_s = call.waited_s
        self.key_name, self.is_manager, self.context = call.key_name, call.is_manager, call.context
        self.precedence = call.precedence
        self.properties = {**call.headers, **(properties or {})}
        self.properties.pop(BATCH_SIZE, None)  # no header or property may set it: one call is no batch
        if self.request_id:
            self.properties["x-request-id"] = self.request_id
        for key, value in call.query:
            self.content.add(key, value.encode())
        content_type = call.headers.get("content-type", "")
        has_fields = is_form(content_type)
        for key, data in parse_form(content_type, call.body) if has_fields else ():
            self.content.add(key, data)
        # Added even when it is empty, or a form without fields: only the call that loads the model has no content.
        if not has_fields or self.content.is_empty():
            self.content.add("data", call.body)
        return self

    def __str__(self) -> str:
        entries = ", ".join(f"{key}: {len(value)} bytes" for key, value in self.content)
        return f"Input(properties={self.properties}, content=[{entries}])"

    # ------------------------------------------------------------------------------------ dynamic batches

    def is_batch(self) -> bool:
        """Whether this is a dynamic batch: several calls in one, see `get_batches`."""
        return BATCH_SIZE in self.properties

    def get_batch_size(self) -> int:
        """How many calls this is; 1 unless it is a batch."""
        return int(self.properties.get(BATCH_SIZE, "1"))

    def get_batches(self) -> list[Input]:
        """The calls of a batch, in order; for a call that is no batch, only the call itself.

        Properties without an index (the model's) belong to every item.

        Raises:
            ValueError: an index is out of range.
        """
        if not self.is_batch():
            return [self]
        items = [Input() for _ in range(self.get_batch_size())]
        for index, item in enumerate(items):
            item.body = self.bodies[index] if index < len(self.bodies) else b""
            item.function_name = self.function_name
            item.operation, item.dialect, item.path = self.operation, self.dialect, self.path
            item.model_name, item.model_version = self.model_name, self.model_version
        own: dict[str, str] = {}
        for key, value in self.properties.items():
            if indexed_key := item_of(key):
                self._item(items, indexed_key[0]).properties[indexed_key[1]] = value
            elif key != BATCH_SIZE:
                own[key] = value
        for item in items:
            item.properties.update(own)
            item.request_id = item.properties.get("x-request-id", "")
        for content_key, data in self.content:
            if indexed_key := item_of(content_key):
                self._item(items, indexed_key[0]).content.add(indexed_key[1], data)
        return items

    @staticmethod
    def _item(items: list[Input], index: int) -> Input:
        if index >= len(items):
            raise ValueError(f"an entry of item {index} in a batch of {len(items)}")
        return items[index]

    # ------------------------------------------------------------------------------------ properties and content

    def get_function_name(self) -> str | None:
        """The handler function this call is for."""
        return self.function_name

    def get_properties(self) -> dict[str, str]:
        """The request's headers and the model's properties."""
        return self.properties

    def get_property(self, key: str) -> str | None:
        """A property by name, ignoring case, or None."""
        value = self.properties.get(key)
        if value is not None:
            return value
        wanted = key.lower()
        return next((value for name, value in self.properties.items() if name.lower() == wanted), None)

    def get_content(self) -> PairList:
        """The content: (name, bytes) pairs."""
        return self.content

    def contains_key(self, key: str) -> bool:
        """Whether the content has an entry `key`."""
        return self.content.contains(key)

    def is_empty(self) -> bool:
        """Whether there is no content: true for the one call that loads the model."""
        return self.content.is_empty()

    # ------------------------------------------------------------------------------------ decoding

    def get_data(self, key: str | None = None) -> Any:
        """A content entry, decoded as the content-type says; None where there is no content.

        tensor/ndlist and tensor/npz: list of arrays; application/json: the value; text/*: str; image/*: an image;
        anything else: bytes.
        """
        if self.content.is_empty():
            return None
        kind = media_type(self.get_property("content-type") or "")
        if kind == "tensor/ndlist":
            return self.get_as_numpy(key)
        if kind == "tensor/npz":
            return self.get_as_npz(key)
        if kind == "application/json":
            return self.get_as_json(key)
        if kind.startswith("text/"):
            return self.get_as_string(key)
        if kind.startswith("image/"):
            return self.get_as_image(key)
        return self.get_as_bytes(key)

    def get_as_bytes(self, key: str | None = None) -> bytes | None:
        """A content entry as sent; without `key`, the entry "data" or else the first. None where there is no content.

        Raises:
            KeyError: there is no entry `key`.
        """
        if self.content.is_empty():
            return None
        if key is None:
            data = self.content.get("data")
            return bytes(self.content.value_at(0) if data is None else data)
        value = self.content.get(key)
        if value is None:
            raise KeyError(f"requested data for key: {key} is not found!")
        return bytes(value)

    def get_as_string(self, key: str | None = None) -> str:
        """A content entry as UTF-8 text.

        Raises:
            KeyError: there is no entry `key`.
            DecodeError: no content, or not UTF-8.
        """
        try:
            return self._bytes(key).decode()
        except UnicodeDecodeError as exc:
            raise DecodeError(f"{self._what(key)} is not UTF-8 text: {exc.reason} at byte {exc.start}") from exc

    def get_as_json(self, key: str | None = None) -> Any:
        """A content entry as JSON (NaN and Infinity are not JSON).

        Raises:
            KeyError: there is no entry `key`.
            DecodeError: no content, or not JSON; says where.
        """
        data = self._bytes(key)
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            if form := self._form_in_place_of_json(key):
                raise DecodeError(form) from exc
            wrong = f"is not valid JSON: {exc}" if data.strip() else "is empty, expected JSON"
            raise DecodeError(f"{self._what(key)} {wrong}") from exc

    def _form_in_place_of_json(self, key: str | None) -> str:
        """What to say where JSON was expected as the whole body, and a form came; "" where none did."""
        content_type = self.get_property("content-type") or ""
        if key is not None or not is_form(content_type) or self.contains_key("data"):
            return ""
        # What `curl -d` sends unless it is told otherwise.
        kind = media_type(content_type)
        return f"the request body: a form ({kind}), expected JSON; for JSON send Content-Type: application/json"

    def get_as_image(self, key: str | None = None) -> Any:
        """A content entry as a PIL image, decoded.

        Raises:
            ImportError: Pillow is not installed.
            KeyError: there is no entry `key`.
            DecodeError: not an image that Pillow reads, cut off, or larger than Pillow allows.
        """
        try:
            import PIL.Image  # type: ignore[import-not-found,unused-ignore]
        except ImportError as exc:
            raise ImportError("reading an image needs Pillow: pip install pillow") from exc
        data = self._bytes(key)
        try:
            image = PIL.Image.open(io.BytesIO(data))
            image.load()  # else the handler would be the first to find that it is cut off
        except PIL.UnidentifiedImageError as exc:
            raise DecodeError(f"{self._what(key)} is not an image") from exc
        except (PIL.Image.DecompressionBombError, *_MALFORMED_IMAGE) as exc:
            raise DecodeError(f"{self._what(key)} is not an image that can be read: {exc}") from exc
        return image

    def get_as_numpy(self, key: str | None = None) -> list[Any]:
        """A content entry in DJL's NDList, .npy or .npz format, as a list of numpy arrays.

        Raises:
            DecodeError: none of these formats, or an archive of more than 256 MiB when unpacked.
        """
        from .compat.np_util import from_nd_list

        return from_nd_list(self._bytes(key))

    def get_as_npz(self, key: str | None = None) -> list[Any]:
        """A content entry in .npz format, as a list of numpy arrays.

        Raises:
            DecodeError: not that format, or more than 256 MiB when unpacked.
        """
        from .compat.np_util import from_npz

        return from_npz(self._bytes(key))

    def get_as_csv(self, key: str | None = None) -> list[dict[str, str]]:
        """A content entry as CSV with a header line: one dict for each row.

        Raises:
            DecodeError: no content, or not CSV.
        """
        return read_dicts(self.get_as_string(key))[1]

    def _bytes(self, key: str | None) -> bytes:
        data = self.get_as_bytes(key)
        if data is None:
            raise DecodeError("the request has no content")
        return data

    @staticmethod
    def _what(key: str | None) -> str:
        return "the request body" if key is None or key == "data" else f"the content {key!r}"
