"""Answers in pieces, of a file or of a page, sent as fast as the client takes them.

Runs in the front end's event loop; files are read in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tornado.iostream import StreamClosedError

from ...core.errors import ServingError
from ...dialects.shared.base import Answer, StreamedAnswer
from ..models.pool.flights import Client
from .response_writer import ResponseWriter

log = logging.getLogger(__name__)

#: A file is read in pieces of this size.
PIECE_BYTES: Final = 256 << 10


@dataclass(frozen=True)
class FileAnswer:
    """A whole response whose body is a file's content."""

    path: Path
    content_type: str = "application/octet-stream"


AnyAnswer = Answer | FileAnswer | StreamedAnswer


async def send_stream(answer: StreamedAnswer, to: Client, writer: ResponseWriter) -> bool:
    """Send the pieces as they come; returns whether the client has stayed. Arguments as `send_file`'s.

    Raises:
        ServingError: as the pieces do.
    """
    to.start(200, dict(answer.headers))
    try:
        async with aclosing(answer.pieces) as pieces:
            async for piece in pieces:
                if writer.ended:
                    return False
                to.body(piece, False)
                await writer.taken()
    except StreamClosedError:
        return False
    to.body(b"", True)
    return True


async def send_file(answer: FileAnswer, to: Client, writer: ResponseWriter) -> bool:
    """Send the file; returns whether the client has stayed.

    Args:
        to: writes it.
        writer: says how far its client is.
    """
    to.start(200, {"content-type": answer.content_type})
    try:
        async with aclosing(_pieces(answer.path)) as pieces:
            async for piece, last in pieces:
                to.body(piece, last)
                if writer.ended:
                    break
                await writer.taken()
    except StreamClosedError:
        return False
    except OSError as exc:
        log.warning("a file can't be sent: %s", exc)
        to.fail(ServingError("the file can't be read"))
    return True


async def _pieces(path: Path) -> AsyncGenerator[tuple[bytes, bool], None]:
    """A file's content in pieces, each with whether it is the last; before that one, the file is closed."""
    file = await asyncio.to_thread(path.open, "rb")
    try:
        piece = await asyncio.to_thread(file.read, PIECE_BYTES)
        while following := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece, False
            piece = following
    finally:
        file.close()
    yield piece, True
