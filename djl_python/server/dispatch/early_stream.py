"""A stream that begins while its model is still loading, so that its client sees signs of life.

Runs in the front end's event loop. What a worker then answers belongs to the stream, also where it is an error: status
and headers have been sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...dialects.shared.base import KEEP_ALIVE_S, Dialect
from ...formats.forms import media_type
from ...formats.json_framing import SSE, SSE_KEEP_ALIVE
from ..models.pool.flights import Client
from .request import ModelRequest


class EarlyStream:
    """A stream of server-sent events that begins before a worker has the request, if its model takes long to load.

    Attributes:
        begun: whether it has begun. From then on, `started` and `piece` have what the worker answers.
    """

    def __init__(self) -> None:
        self.begun = False
        self._gathered: list[bytes] | None = None  # the pieces of an answer that is no stream

    async def wait(self, loading: asyncio.Future[Any], request: ModelRequest, client: Client) -> None:
        """Wait until a model is loaded, or is not. Meanwhile its client sees signs of life, where its API has some."""
        while not (await asyncio.wait({loading}, timeout=KEEP_ALIVE_S))[0]:
            if not self.begun:
                headers = request.dialect.waiting_stream(request.match.operation, request.body)
                if headers is None:
                    await asyncio.wait({loading})
                    return
                client.start(200, dict(headers))
                self.begun = True
            client.body(SSE_KEEP_ALIVE, last=False)

    def started(self, status: int, headers: Mapping[str, str]) -> None:
        """The worker's answer begins."""
        if status != 200 or media_type(headers.get("content-type", "")) != SSE:
            self._gathered = []

    def piece(self, data: bytes, last: bool, dialect: Dialect) -> bytes:
        """What a piece of the worker's answer is in the stream; of an answer that is none, all comes at its end."""
        if self._gathered is None:
            return data
        self._gathered.append(data)
        return dialect.late_error(b"".join(self._gathered)) if last else b""
