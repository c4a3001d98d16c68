"""The generation for one call: its prompts take turns in the engine, and share an answer, a deadline and metrics.

Runs in the worker's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from djl_python.core import logs
from djl_python.core.call_usage import CallUsage
from djl_python.core.errors import ParameterError, PredictTimeoutError, ServingError, from_kind
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.turns.deadline import DEADLINE_HEADER
from djl_python.core.turns.precedence import ANY, Precedence
from djl_python.core.types import Finish, SamplingParams, Timings, TokenEvent
from djl_python.engine.client import EngineClient
from djl_python.handler import Metrics

from ..answer import TextAnswer
from ..prepared import Prepared
from ..step_metrics import StepMetrics
from .deadline import Deadline
from .generation_trace import GenerationTrace

#: A call of many prompts leaves 1 / n of the engine's batch to others.
_SHARE_FOR_OTHERS: Final = 8


class Job(Protocol):
    """The sequences of one prompt. Nothing is submitted before `start`.

    Attributes:
        index: the prompt's place among those of the call.
        sequences: how many sequences it may have in the engine at a time.
    """

    index: int
    sequences: int

    def start(self) -> None:
        """Submit the first sequences. `Generation.prompt_ended` is called once the prompt has its answer."""
        ...

    def cut(self) -> None:
        """End every sequence that has not ended with its text so far, whether the job has started or not."""
        ...


class Generation:
    """The generation for one call, between engine and client.

    The engine takes sequences in the order in which they come, and a call of a thousand prompts would keep all others
    waiting until it is answered. So each of its jobs starts when it has room in the call's part of the batch; one with
    more sequences than that is alone there.

    Create it when the call has been prepared: that ends the time of validation.

    Args:
        waited_s: how long the call waited for this worker, in seconds.
        arrived_s: when the call arrived here, by time.perf_counter.
        request_id: of the call, for log lines.
        precedence: of the call; a request's own priority goes before its.
        adapters: the versions of the adapters that its prompts name, by name.
        cache_scope: prompts of calls with another one share no KV blocks with this call's.
        trace: of the call, if it is traced.
        usage: of the call, if its tokens are counted.

    Attributes:
        answer: receives the sequences.
    """

    def __init__(
        self,
        engine: EngineClient,
        answer: TextAnswer,
        metrics: Metrics,
        steps: StepMetrics,
        *,
        waited_s: float,
        arrived_s: float,
        request_id: str = "",
        precedence: Precedence = ANY,
        adapters: Mapping[str, int] | None = None,
        cache_scope: str = "",
        trace: GenerationTrace | None = None,
        usage: CallUsage | None = None,
    ) -> None:
        self.answer = answer
        self._engine = engine
        self._metrics = metrics
        self._steps = steps
        self._waited_s = waited_s
        self._arrived_s = arrived_s
        self._request_id = request_id
        self._precedence = precedence
        self._adapters = adapters or {}
        self._cache_scope = cache_scope
        self._trace = trace
        self._usage = usage
        self._prepared_s = time.perf_counter()
        self._ids: dict[int, list[int]] = {}  # of the engine's sequences, by the index of their prompt
        self._has_token = False  # whether a token of any sequence has come
        most = engine.limits.max_batch_size
        self._most_sequences = most - most // _SHARE_FOR_OTHERS
        self._jobs: dict[int, Job] = {}  # those whose prompts have no answer yet, by index
        self._waiting = deque[Job]()
        self._running: dict[int, int] = {}  # index of a prompt: its sequences

    async def run(self, jobs: Sequence[Job], deadline: Deadline | None = None) -> None:
        """Generate until the end, a failure, or the cancellation of this task. Leaves nothing in the engine.

        Args:
            jobs: one for each prompt, in order.
            deadline: when every sequence ends with the text so far, and the reason `length`.

        Raises:
            PredictTimeoutError: the deadline passed before the first token.
            ServingError: the engine failed.
        """
        self._jobs, self._waiting = {job.index: job for job in jobs}, deque(jobs)
        timer = None
        try:
            self._start_jobs()
            if deadline is not None:
                loop = asyncio.get_running_loop()
                timer = loop.call_later(deadline.left_s(), self._cut, deadline.timeout_s)
            await self.answer.wait()
        finally:
            if timer is not None:
                timer.cancel()
            for request_ids in self._ids.values():  # those of finished sequences are ignored
                for request_id in request_ids:
                    self._engine.cancel(request_id)

    def prompt_ended(self, index: int) -> None:
        """A prompt has its answer, or has failed: others may start."""
        del self._running[index], self._jobs[index]
        self._start_jobs()

    def _start_jobs(self) -> None:
        """Start the next jobs, as many as have room."""
        while self._waiting:
            job = self._waiting[0]
            if self._running and sum(self._running.values()) + job.sequences > self._most_sequences:
                return
            self._waiting.popleft()
            self._running[job.index] = job.sequences
            job.start()

    def _cut(self, timeout_s: float) -> None:
        """End all sequences at the deadline; an exception in it fails this call only."""
        try:
            if not self._has_token:
                raise PredictTimeoutError(f"no token within {timeout_s:g} s ({DEADLINE_HEADER})")
            for job in self._waiting:
                self._running[job.index] = job.sequences
            self._waiting.clear()
            for job in list(self._jobs.values()):
                job.cut()
        except BaseException as error:
            self.answer.fail(error)

    def submit(
        self, prepared: Prepared, ids: list[int], sampling: SamplingParams, receive: Callable[[TokenEvent], None]
    ) -> int:
        """Have a sequence of a prompt generated, from `ids` on; its id.

        `receive` gets its events; an exception in it fails this call only.
        """
        answer = self.answer

        def on_event(event: TokenEvent) -> None:
            if answer.done():
                return
            try:
                if event.error is not None:
                    self._fail(prepared, _failure(event.error_kind, event.error, sampling))
                    return
                receive(event)
            except BaseException as error:
                with logs.about(self._request_id):
                    answer.fail(error)

        precedence = self._precedence
        if prepared.request.priority is not None:
            precedence = msgspec.structs.replace(precedence, priority=prepared.request.priority)
        adapter = prepared.request.adapter
        request = SequenceRequest(
            ids,
            sampling,
            images=prepared.images,
            adapter=adapter,
            adapter_version=self._adapters[adapter] if adapter else 0,
            http_request_id=self._request_id,
            encoder_ids=prepared.encoder_ids,
            precedence=precedence,
            cache_salt=_salt(self._cache_scope, prepared.request.cache_salt),
        )
        request_id = self._engine.submit(request, on_event)
        self._ids.setdefault(prepared.index, []).append(request_id)
        return request_id

    def _fail(self, prepared: Prepared, error: ServingError) -> None:
        """The engine failed in a sequence of a prompt: the error of that prompt alone, or of the call."""
        if not self.answer.isolates:
            raise error
        request_ids = self._ids.pop(prepared.index, None)
        if request_ids is None:
            return  # a sibling has failed already
        for request_id in request_ids:
            self._engine.cancel(request_id)
        self.answer.fail_item(prepared.index, prepared.request.branching.n, error)
        self.prompt_ended(prepared.index)

    def cancel(self, request_id: int) -> None:
        """Stop a sequence in the engine before its end."""
        self._engine.cancel(request_id)

    def count_token(self, previous_s: float | None) -> float:
        """Count a token of a sequence, and measure its latency.

        Args:
            previous_s: when the sequence's previous token came; None for its first.

        Returns:
            The time, by time.perf_counter.
        """
        now_s = time.perf_counter()
        if self._usage is not None:
            self._usage.generated()
        self._steps.token(None if previous_s is None else now_s - previous_s)
        self.answer.progressed()
        if not self._has_token:
            self._has_token = True
            self._metrics.observe("time_to_first_token_seconds", now_s - self._arrived_s)
        return now_s

    def began_s(self, submitted_s: float, first_token_s: float, first: TokenEvent) -> float:
        """When the engine began to work on a sequence, computed from its `first` token's event; until then, it was
        queued.
        """
        began_s = max(submitted_s, first_token_s - (first.running_s or 0.0))
        if self._trace is not None:
            self._trace.first_token(began_s, first_token_s)
        return began_s

    def timings(self, submitted_s: float, began_s: float, ended_s: float) -> Timings:
        """How long each part of a sequence took."""
        queue_s = self._waited_s + (began_s - submitted_s)
        return Timings(self._prepared_s - self._arrived_s, queue_s, ended_s - began_s)

    def count_cached(self, tokens: int | None) -> None:
        """Count the tokens of a prompt that the engine found in its cache; None: it does not know."""
        if tokens:
            self._metrics.count("cached_prompt_tokens", tokens)

    def count_sequence(self, finish: Finish, max_new_tokens: int) -> None:
        """Report the metrics of a sequence that has ended."""
        self._steps.sequence_ended()
        if self._trace is not None:
            self._trace.sequence_ended(finish)
        observe, timings = self._metrics.observe, finish.timings
        observe("request_validation_seconds", timings.validation_s)
        observe("queue_seconds", max(timings.queue_s - self._waited_s, 0.0))
        observe("request_queue_seconds", timings.queue_s)
        observe("request_inference_seconds", timings.inference_s)
        observe("request_time_per_token_seconds", timings.inference_s / max(finish.generated_tokens, 1))
        observe("request_prompt_tokens", finish.prompt_tokens)
        observe("request_generated_tokens", finish.generated_tokens)
        observe("request_max_new_tokens", max_new_tokens)


def _failure(kind: str, message: str, sampling: SamplingParams) -> ServingError:
    """The engine's error. A refused parameter is the grammar: all others were checked before."""
    error = from_kind(kind, message)
    field = sampling.grammar.field if sampling.grammar is not None else ""
    if field and isinstance(error, ParameterError):
        return ParameterError(f"{field}: {error.message}", field)
    return error


def _salt(scope: str, own: str) -> str:
    """A request's salt within a scope; different for each pair of both, and "" without either."""
    return f"{len(scope)} {scope}{own}" if scope or own else ""
