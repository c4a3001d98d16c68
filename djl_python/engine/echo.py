"""An engine without a model: gives every sequence its own prompt back, token by token. Runs in the engine process.

Measures the cost of everything but the model, and tests clients: it starts at once, needs only a tokenizer of a
    checkpoint, and imports no torch.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ..config.engines import NoOptions
from ..core.engine_info import EngineStats
from ..core.sequence_request import SequenceRequest
from ..core.types import TokenEvent
from .batch.sequence import PromptEntry, Sequence
from .interface import EngineSettings, Progress, RollingBatch
from .row import Engine

_DEFAULT_CONTEXT = 1 << 20


class EchoRollingBatch(RollingBatch):
    """Repeats each prompt until max_new_tokens or the context ends it; every token is certain (log-probability 0)."""

    def __init__(self, settings: EngineSettings, progress: Progress) -> None:
        self.max_model_len = settings.max_model_len or _DEFAULT_CONTEXT
        self.max_batch_size = settings.max_batch_size
        self.description = "echo: repeats the prompt"
        self._ends = frozenset[int]()  # tokens that end an answer
        self._running: dict[int, Sequence] = {}
        self._waiting: deque[Sequence] = deque()

    def add(self, request: SequenceRequest) -> None:
        self.check_prompt(request.prompt_ids)
        sequence = Sequence.of(request)
        if (shown := request.sampling.prompt_logprobs) is not None:
            certain: list[PromptEntry] = [(0.0, _top(token, shown)) for token in request.prompt_ids[1:]]
            sequence.prompt_entries, sequence.prompt_ranks = [(None, ()), *certain], [None, *(1 for _ in certain)]
        self._waiting.append(sequence)

    def cancel(self, request_id: int) -> None:
        if self._running.pop(request_id, None) is None:
            self._waiting = deque(s for s in self._waiting if s.id != request_id)

    def step(self) -> list[TokenEvent]:
        while self._waiting and len(self._running) < self.max_batch_size:
            sequence = self._waiting.popleft()
            self._running[sequence.id] = sequence
        events = [self._advance(sequence) for sequence in self._running.values()]
        for event in events:
            if event.finish is not None:
                del self._running[event.request_id]
        return events

    def isolate(self, cause: Exception) -> list[TokenEvent]:
        raise cause  # nothing in a step can fail because of a request

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def stats(self) -> EngineStats:
        return EngineStats(running=len(self._running), waiting=len(self._waiting))

    def _advance(self, sequence: Sequence) -> TokenEvent:
        token = sequence.tokens[len(sequence.tokens) - sequence.prompt_length]
        return sequence.append(token, 0.0, _top(token, sequence.sampling.top_logprobs), self._ends, self.max_model_len)


def _top(token: int, alternatives: int) -> tuple[tuple[int, float], ...]:
    return ((token, 0.0),) if alternatives else ()


ENGINE: Final = Engine(
    name="echo",
    summary="Repeats prompts, without a model: to measure what everything but the model costs.",
    opens="djl_python.engine.echo:EchoRollingBatch",
    options=NoOptions,
    parameters=frozenset("max_new_tokens stop_token_ids logprobs top_logprobs prompt_logprobs".split()),
)
