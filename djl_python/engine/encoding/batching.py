"""The encoder that the engine's loop steps: a batch of sequences a step, chosen by `queue`. Runs in the engine process.

Imports no torch: what computes a batch is given to it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ...core.engine_info import EngineInfo, EngineStats
from ...core.errors import GenerationError, MemoryLoadError, ServingError, lacks_machine, lacks_memory
from ...core.types import Array
from ...ipc.encodings import EncodeRequest, EncoderInput, Encoding
from ..interface import Encoder, failed_encoding
from .queue import FairQueue, Item

_NOT_FINITE: Final = "the model's numbers for this text are not finite: option.dtype=fp32 has the widest range"


class Model(Protocol):
    """What computes a batch."""

    context: int
    vocabulary: int

    def check(self, one: EncoderInput) -> None: ...

    def run(self, inputs: Sequence[EncoderInput]) -> list[npt.NDArray[np.float32]]: ...


class BatchingEncoder(Encoder):
    """An `Encoder` whose steps compute one batch each.

    Args:
        fewest: with how many sequences a step does not wait for more.
        delay_s: how long fewer wait, in seconds, since the first of them came.
        clock: gives the time in seconds.
    """

    def __init__(
        self,
        model: Model,
        queue: FairQueue,
        *,
        at_once: int,
        info: EngineInfo,
        pooling: str = "",
        fewest: int = 1,
        delay_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.max_model_len = model.context
        self.vocabulary = model.vocabulary
        self.max_batch_size = at_once
        self.info = info
        self.max_batch_tokens = queue.max_tokens
        self.pooling = pooling
        self.description = f"{info.summary}; up to {queue.max_tokens} tokens at once"
        self._model = model
        self._queue = queue
        self._fewest = fewest
        self._delay_s = delay_s
        self._clock = clock
        self._left: dict[int, int] = {}  # inputs without a result, by request
        self._refused: list[Encoding] = []
        self._computing: list[Item] = []
        self._alone: deque[Item] = deque()  # of a batch that failed: each is tried by itself
        self._waits_since_s: float | None = None
        self._step_s = 0.0
        self._stepped = 0

    def add(self, request: EncodeRequest) -> None:
        self._left[request.id] = len(request.inputs)
        taken = []
        for index, one in enumerate(request.inputs):
            try:
                self._model.check(one)
            except ServingError as error:
                self._refused.append(self._failed(request.id, index, error))
            else:
                taken.append((index, one))
        self._queue.add(request.id, taken, request.precedence)
        if taken and self._waits_since_s is None:
            self._waits_since_s = self._clock()

    def cancel(self, request_id: int) -> None:
        if self._left.pop(request_id, None) is not None:
            self._queue.cancel(request_id)
            self._refused = [one for one in self._refused if one.request_id != request_id]
            self._alone = deque(item for item in self._alone if item.request_id != request_id)

    def step(self) -> list[Encoding]:
        self._step_s, self._stepped = 0.0, 0
        if self._refused:  # at once: a batch that fails would take them along
            refused, self._refused = self._refused, []
            return refused
        if self.pause_s > 0:
            return []
        self._computing = [self._alone.popleft()] if self._alone else self._queue.take()
        if not self._computing:
            return []
        self._waits_since_s = self._clock() if self._queue else None
        began_s = self._clock()
        outputs = self._model.run([item.input for item in self._computing])
        self._step_s, self._stepped = self._clock() - began_s, len(self._computing)
        made = [self._made(item, numbers) for item, numbers in zip(self._computing, outputs, strict=True)]
        self._computing = []
        return made

    def isolate(self, cause: Exception) -> list[Encoding]:
        if lacks_machine(cause):
            raise cause
        failed, self._computing = self._computing, []
        if len(failed) != 1:
            self._alone.extend(item for item in failed if item.request_id in self._left)
            return []
        (item,) = failed
        if lacks_memory(cause):
            cause = MemoryLoadError(f"there is no memory to compute a text of {item.length} tokens")
        return [self._failed(item.request_id, item.index, cause)]

    @property
    def idle(self) -> bool:
        return not (self._queue or self._alone or self._refused)

    @property
    def pause_s(self) -> float:
        if self._refused or self._alone or self._waits_since_s is None or len(self._queue) >= self._fewest:
            return 0.0
        return max(0.0, self._waits_since_s + self._delay_s - self._clock())

    @property
    def stats(self) -> EngineStats:
        waiting = len(self._queue) + len(self._alone)
        return EngineStats(running=len(self._left), waiting=waiting, step_s=self._step_s, step_sequences=self._stepped)

    def _made(self, item: Item, numbers: npt.NDArray[np.float32]) -> Encoding:
        if not np.isfinite(numbers).all():
            return self._failed(item.request_id, item.index, GenerationError(_NOT_FINITE))
        array = Array("float32", numbers.shape, numbers.tobytes())
        return Encoding(item.request_id, item.index, array, ends=self._ends(item.request_id))

    def _failed(self, request_id: int, index: int, error: Exception) -> Encoding:
        return failed_encoding(request_id, error, index, ends=self._ends(request_id))

    def _ends(self, request_id: int) -> bool:
        """Count a result of a request; whether it is the last."""
        self._left[request_id] -= 1
        if self._left[request_id]:
            return False
        del self._left[request_id]
        return True
