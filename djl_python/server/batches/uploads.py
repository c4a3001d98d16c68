"""Uploads of files: forms whose file goes to the disk as it arrives.

Runs in the front end's event loop.
"""

from __future__ import annotations

from typing import Final

from ...core.errors import MediaTypeError, PayloadError, StorageError, TooLargeError
from ...dialects.shared import batches as api
from ...dialects.shared.base import Answer
from ...formats.forms import MULTIPART, media_type
from ...formats.json_framing import encode_json
from ...formats.multipart import Begun, MultipartReader
from ..http.requests.request_head import RequestHead
from .fields import check_known, nested, read_texts
from .store import KEPT_S, Store

#: Most bytes of a form besides its file: other fields, the parts' headers, and delimiters.
MAX_FORM_BYTES: Final = 64 << 10
_FILE: Final = "file"


class Upload:
    """One upload. Is the exchange's `Receiver`.

    Args:
        max_bytes: that its file may have.
        owner: the name of the API key whose file it is.

    Raises:
        MediaTypeError, PayloadError: the body is no form.
        TooLargeError: the body is said to be longer than it may be, or than there is room.
    """

    def __init__(self, store: Store, head: RequestHead, max_bytes: int, owner: str = "") -> None:
        content_type = head.headers.get("content-type", "")
        if media_type(content_type) != MULTIPART:
            raise MediaTypeError(f"expected {MULTIPART} with the parts file and purpose, got {content_type!r}")
        self._reader = MultipartReader(content_type)
        self._store = store
        self._max_bytes = max_bytes
        self._filename = ""
        self._fields: list[tuple[str, bytes]] = []
        self._form_bytes = 0  # bytes so far, without the file's data
        self._has_file = self._in_file = False
        least = head.declared_length() - MAX_FORM_BYTES
        self._check_size(least)
        self._file = store.arrive(max(0, least), owner)

    async def write(self, piece: bytes) -> None:
        """Take a piece of the form; its file is on its way to the disk when this ends."""
        self._form_bytes += len(piece)
        for read in self._reader.feed(piece):
            if isinstance(read, Begun):
                self._begin(read)
            elif not self._in_file:
                self._add_to_field(read)
            else:
                self._form_bytes -= len(read)
                self._check_size(self._file.size + len(read))
                try:
                    await self._file.write(read)
                except OSError as exc:
                    raise StorageError.of(exc) from exc
        if self._form_bytes > MAX_FORM_BYTES:
            raise TooLargeError(f"the form has more than {MAX_FORM_BYTES} bytes beside its file")

    async def answer(self) -> Answer:
        """Keep the file."""
        try:
            self._reader.end()
            if not self._file.size:
                raise PayloadError("file: required, expected a part with the file's content, which is not empty", _FILE)
            upload = read_texts({_FILE: "", **nested(self._fields)}, api.Upload)
            kept_s = KEPT_S if upload.expires_after is None else upload.expires_after.seconds
            added = await self._store.add(self._file, self._filename or _FILE, kept_s)
            return Answer(200, encode_json(added))
        except OSError as exc:
            raise StorageError.of(exc) from exc
        finally:
            self._file.abandon()  # ignored if it is kept

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._file.abandon()

    def _begin(self, part: Begun) -> None:
        self._in_file = part.name == _FILE
        if not self._in_file:
            self._fields.append((part.name, b""))
            return
        if self._has_file:
            raise PayloadError("file: expected one part of this name, got another", _FILE)
        self._has_file, self._filename = True, part.filename
        # A field that is wrong need not wait for the whole file; others may come behind it.
        before = nested(self._fields)
        check_known(before, api.Upload)
        read_texts({_FILE: "", "purpose": before.get("purpose", "batch")}, api.Upload)

    def _add_to_field(self, data: bytes) -> None:
        name, before = self._fields[-1]
        self._fields[-1] = (name, before + data)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise TooLargeError(f"the file is larger than batch_max_file_bytes, which is {self._max_bytes} bytes")
