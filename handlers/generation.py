"""What all sequences of one call share: engine, answer, and metrics. Runs in the worker's event loop."""

from __future__ import annotations

import time
from collections.abc import Callable

from djl_python.core import logs
from djl_python.core.errors import ParameterError, ServingError, from_kind
from djl_python.core.types import Finish, SamplingParams, Timings, TokenEvent
from djl_python.engine.client import EngineClient
from djl_python.handler import Metrics

from .answer import TextAnswer
from .generation_trace import GenerationTrace
from .preparation import Prepared
from .step_metrics import StepMetrics


class Generation:
    """The generation for one call, between engine and client.

    Make it when the call has been prepared: that ends the time of validation.

    Args:
        waited_s: how long the call waited for this worker, in seconds.
        arrived_s: when the call arrived here, by time.perf_counter.
        request_id: of the call, for log lines.
        trace: of the call, if it is traced.
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
        trace: GenerationTrace | None = None,
    ) -> None:
        self.answer = answer
        self._engine = engine
        self._metrics = metrics
        self._steps = steps
        self._waited_s = waited_s
        self._arrived_s = arrived_s
        self._request_id = request_id
        self._trace = trace
        self._prepared_s = time.perf_counter()
        self._ids: list[int] = []
        self._has_token = False

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
                    raise _failure(event.error_kind, event.error, sampling)
                receive(event)
            except BaseException as error:
                with logs.about(self._request_id):
                    answer.fail(error)

        request_id = self._engine.submit(
            ids, sampling, on_event, prepared.images, prepared.request.adapter, http_request_id=self._request_id
        )
        self._ids.append(request_id)
        return request_id

    def cancel(self, request_id: int) -> None:
        """Stop a sequence in the engine before its end."""
        self._engine.cancel(request_id)

    def release(self) -> None:
        """Leave no sequence in the engine, however the call ended; finished sequences are ignored."""
        for request_id in self._ids:
            self._engine.cancel(request_id)

    def count_token(self, previous_s: float | None) -> float:
        """Count a token of a sequence, and measure its latency.

        Args:
            previous_s: when the sequence's previous token came; None for its first.

        Returns:
            The time, by time.perf_counter.
        """
        now_s = time.perf_counter()
        self._steps.token(None if previous_s is None else now_s - previous_s)
        if not self._has_token:
            self._has_token = True
            self._metrics.observe("time_to_first_token_seconds", now_s - self._arrived_s)
        return now_s

    def began_s(self, submitted_s: float, first_token_s: float, first: TokenEvent) -> float:
        """When the engine began to work on a sequence, whose `first` token has come: before, it was queueing."""
        began_s = max(submitted_s, first_token_s - (first.running_s or 0.0))
        if self._trace is not None:
            self._trace.first_token(began_s, first_token_s)
        return began_s

    def timings(self, submitted_s: float, began_s: float, ended_s: float) -> Timings:
        """How long each part of a sequence took."""
        queue_s = self._waited_s + (began_s - submitted_s)
        return Timings(self._prepared_s - self._arrived_s, queue_s, ended_s - began_s)

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
    """The engine's error. A parameter that it refuses is the grammar: all others were checked on their way in."""
    error = from_kind(kind, message)
    field = sampling.grammar.field if sampling.grammar is not None else ""
    if field and isinstance(error, ParameterError):
        return ParameterError(f"{field}: {error.message}", field)
    return error
