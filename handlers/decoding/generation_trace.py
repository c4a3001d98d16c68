"""Events and attributes that a generation adds to its call's span.

Runs in the worker's event loop, where requests are traced.
Names are those of OpenTelemetry's semantic conventions for generative AI (in development, as of 1.44); those that
begin with `djl.` are this project's own. Prompts and answers are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from djl_python.core.call_trace import AttributeValue, CallTrace
from djl_python.core.types import Chat, Finish, FinishReason, GenerateRequest

from ..prepared import Prepared

#: The conventions' names of reasons are OpenAI's.
_REASONS: Final = {FinishReason.LENGTH: "length", FinishReason.ERROR: "error"}


class GenerationTrace:
    """The span's events: `prefill`, when the engine begins to read the prompt, and `decode`, when the first token is
    there. Both describe the sequence that has a token first.

    Args:
        prompts: the call's; the span has the first one's parameters.
        streams: whether the answer is a stream.
        validated_s: how long it took to parse and tokenize them, in seconds.
    """

    def __init__(self, trace: CallTrace, prompts: Sequence[Prepared], *, streams: bool, validated_s: float) -> None:
        self._trace = trace
        self._finishes: list[Finish] = []
        self._has_token = False
        trace.note(_asked_for(prompts[0].request))
        trace.note(
            {
                "gen_ai.request.stream": streams,
                "gen_ai.usage.input_tokens": sum(len(prompt.prompt_ids) for prompt in prompts),
                "djl.validation_s": validated_s,
            }
        )

    def first_token(self, began_s: float, at_s: float) -> None:
        """A sequence has its first token.

        Args:
            began_s: when the engine began to work on it, by time.perf_counter.
            at_s: when the token came.
        """
        if not self._has_token:
            self._has_token = True
            self._trace.event("prefill", began_s)
            self._trace.event("decode", at_s)
            self._trace.note({"djl.prefill_s": at_s - began_s})
            self._trace.send()  # now: nothing is sent after a client has left

    def sequence_ended(self, finish: Finish) -> None:
        """A sequence has ended: tokens are summed over all of them, times are the last one's."""
        self._finishes.append(finish)
        attributes: dict[str, AttributeValue] = {
            "gen_ai.usage.output_tokens": sum(finish.generated_tokens for finish in self._finishes),
            "gen_ai.response.finish_reasons": [_REASONS.get(finish.reason, "stop") for finish in self._finishes],
            "djl.queue_s": finish.timings.queue_s,
            "djl.inference_s": finish.timings.inference_s,
        }
        if any(finish.reasoning_tokens is not None for finish in self._finishes):
            attributes["gen_ai.usage.reasoning.output_tokens"] = sum(
                finish.reasoning_tokens or 0 for finish in self._finishes
            )
        self._trace.note(attributes)


def _asked_for(request: GenerateRequest) -> dict[str, AttributeValue]:
    sampling = request.sampling
    asked: dict[str, AttributeValue] = {
        "gen_ai.operation.name": "chat" if isinstance(request.prompt, Chat) else "text_completion",
        "gen_ai.request.max_tokens": sampling.max_new_tokens,
    }
    if request.branching.n > 1:
        asked["gen_ai.request.choice.count"] = request.branching.n
    if sampling.frequency_penalty:
        asked["gen_ai.request.frequency_penalty"] = sampling.frequency_penalty
    if sampling.presence_penalty:
        asked["gen_ai.request.presence_penalty"] = sampling.presence_penalty
    if sampling.do_sample:
        asked |= {
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
        }
    else:
        asked["gen_ai.request.temperature"] = 0.0
    return asked
