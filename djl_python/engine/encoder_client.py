"""The worker's end of an encoder: sends the inputs of a request, collects the results.

Runs in the worker's event loop; imports no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from ..config import ModelConfig
from ..core.errors import ServingError, WorkerDiedError, from_kind
from ..ipc.encodings import EncodeRequest, Encoding
from ..ipc.protocol import AnyMessage, Cancel, Encoded
from .encoding.row import ENGINE, encoder_settings
from .encoding.settings import Head
from .process import DEATH, EngineProcess, Hooks, common_settings

Numbers = npt.NDArray[np.float32]


class EncoderClient(EngineProcess):
    """One engine process that encodes, opened with `open`."""

    def __init__(self, hooks: Hooks, config: ModelConfig) -> None:
        super().__init__(hooks, config)
        self._requests: dict[int, _Request] = {}

    @classmethod
    async def open(cls, config: ModelConfig, model_path: Path, head: Head, hooks: Hooks) -> EncoderClient:
        """Spawn the engine and wait until its model is loaded.

        Args:
            head: the wanted output of the model.

        Raises:
            ModelLoadError: with the engine's reason.
        """
        settings = encoder_settings(config, common_settings(config, model_path), head)
        self = cls(hooks, config)
        await self._begin(ENGINE, config, settings)
        return self

    async def encode(
        self,
        request: EncodeRequest,
        *,
        on_progress: Callable[[], object] = lambda: None,
    ) -> list[Numbers]:
        """The model's result for each input, in order. Cancellation takes the inputs back.

        Args:
            request: its id is assigned here.
            on_progress: called whenever a result arrives.

        Raises:
            ServingError: one of them can't be computed; the others are taken back.
            WorkerDiedError: the engine ended before all of them were there.
            OverflowError, TypeError, ValueError: they can't be sent; other requests are not affected.
        """
        if not request.inputs:
            return []
        if self._channel.closed:
            raise WorkerDiedError(DEATH)
        request_id = next(self._ids)
        self._channel.send(msgspec.structs.replace(request, id=request_id))
        collected = self._requests[request_id] = _Request(len(request.inputs), on_progress)
        try:
            return await collected.whole
        finally:
            if self._requests.pop(request_id, None) is not None and not self._channel.closed:
                self._channel.send(Cancel(request_id))

    def _take(self, message: AnyMessage) -> None:
        if not isinstance(message, Encoded):
            return
        for encoding in message.encodings:
            if encoding.request_id in self._requests:
                self._requests[encoding.request_id].take(encoding)
                if encoding.ends:
                    del self._requests[encoding.request_id]
        self._hooks.on_stats(message.stats)

    def _fail_all(self) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.fail(WorkerDiedError(DEATH))


class _Request:
    """The inputs of one request that are being encoded."""

    def __init__(self, count: int, on_progress: Callable[[], object]) -> None:
        self.whole: asyncio.Future[list[Numbers]] = asyncio.get_running_loop().create_future()
        self._arrays: dict[int, Numbers] = {}
        self._count = count
        self._on_progress = on_progress

    def take(self, encoding: Encoding) -> None:
        if self.whole.done():
            return
        if encoding.numbers is None:
            self.fail(from_kind(encoding.error_kind, encoding.error or ""))
            return
        array = encoding.numbers
        self._arrays[encoding.index] = np.frombuffer(array.data, np.float32).reshape(array.shape)
        self._on_progress()
        if len(self._arrays) == self._count:
            self.whole.set_result([self._arrays[index] for index in range(self._count)])

    def fail(self, error: ServingError) -> None:
        if not self.whole.done():
            self.whole.set_exception(error)
