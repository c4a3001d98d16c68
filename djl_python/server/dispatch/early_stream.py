"""A stream that begins while its model is still loading, so that its client sees signs of life.

Runs in the front end's event loop. What a worker then answers belongs to the stream, also where it is an error: status
and headers have been sent. So a stream begins only where the model's settings say that server-sent events will come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ...config import ModelConfig
from ...core.errors import HandlerError
from ...dialects.shared.base import KEEP_ALIVE_S, Dialect
from ...formats.forms import media_type
from ...formats.json_framing import SSE, SSE_KEEP_ALIVE
from ...usercode.module import has_user_code
from ..models.pool.flights import Client
from ..models.served_model import ServedModel
from .request import ModelRequest


class EarlyStream:
    """A stream of server-sent events that begins before a worker has the request, if its model takes long to load.

    Attributes:
        begun: whether it has begun. From then on, `started` and `piece` have what the worker answers.
    """

    def __init__(self) -> None:
        self.begun = False
        self._gathered: list[bytes] | None = None  # the pieces of an error
        self._strays = ""  # the content type of an answer that can't be a part of the stream

    async def wait(
        self,
        loading: asyncio.Future[Any],
        request: ModelRequest,
        client: Client,
        model: Callable[[], ServedModel | None],
    ) -> None:
        """Wait until a model is loaded, or is not. Meanwhile its client sees signs of life, where its API has some.

        Args:
            model: it, as soon as its settings are known.
        """
        while not (await asyncio.wait({loading}, timeout=KEEP_ALIVE_S))[0]:
            if not self.begun:
                if (known := model()) is None:
                    continue
                if (headers := _headers(request, known.config)) is None:
                    await asyncio.wait({loading})
                    return
                client.start(200, dict(headers))
                self.begun = True
            client.body(SSE_KEEP_ALIVE, last=False)

    def started(self, status: int, headers: Mapping[str, str]) -> None:
        """The worker's answer begins."""
        kind = headers.get("content-type", "")
        if status != 200:
            self._gathered = []
        elif media_type(kind) != SSE:  # a reload has changed the model while the request waited
            self._strays = kind or "no content type"

    def piece(self, data: bytes, last: bool, dialect: Dialect) -> bytes:
        """What a piece of the worker's answer is in the stream; an error comes at its end."""
        if self._strays:
            why = HandlerError(f"the model, which was being loaded, answers with {self._strays}: expected {SSE}")
            return dialect.late_error(dialect.error(why).body) if last else b""
        if self._gathered is None:
            return data
        self._gathered.append(data)
        return dialect.late_error(b"".join(self._gathered)) if last else b""


def _headers(request: ModelRequest, model: ModelConfig) -> Mapping[str, str] | None:
    """The headers of the stream; None: it can't begin early. Code of the user's answers as it likes."""
    if has_user_code(model):
        return None
    return request.dialect.waiting_stream(request.match.operation, request.body, model)
