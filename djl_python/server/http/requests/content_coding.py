"""Decodes bodies that clients have compressed (RFC 9110, 8.4). Runs in the front end's event loop."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from ....core.errors import MediaTypeError, PayloadError
from .request_head import RequestHead

#: The codings, and what zlib calls their formats.
_FORMATS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_PIECE_BYTES: Final = 1 << 16


class Decoder:
    """Decodes one body, piece by piece, so that a few bytes can't become gigabytes unseen."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._inflate: zlib._Decompress | None = None  # from the first byte on

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """The decoded pieces of a part of the body.

        Raises:
            PayloadError: the body is not what its header says.
        """
        while chunk:
            if self._inflate is None or self._inflate.eof:  # gzip data may follow gzip data
                self._inflate = zlib.decompressobj(_FORMATS[self._coding])
            try:
                piece = self._inflate.decompress(chunk, _PIECE_BYTES)
            except zlib.error as exc:
                raise PayloadError(f"the body is not {self._coding} data: {exc}") from exc
            chunk = self._inflate.unconsumed_tail or self._inflate.unused_data
            if piece:
                yield piece

    def end(self) -> None:
        """Note that the body is complete.

        Raises:
            PayloadError: it is not.
        """
        if self._inflate is not None and not self._inflate.eof:
            raise PayloadError(f"the body's {self._coding} data has no end")


def decoder_of(head: RequestHead) -> Decoder | None:
    """The decoder of a request's body; None if it is not compressed. Removes the coding's headers from the head.

    Raises:
        MediaTypeError: nothing does.
    """
    coding = head.headers.get("content-encoding", "identity").strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _FORMATS:
        raise MediaTypeError(f"content-encoding: got {coding!r}, expected gzip, deflate or identity")
    for name in ("content-encoding", "content-length"):
        head.headers.pop(name, None)
    return Decoder(coding)
