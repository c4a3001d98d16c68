"""What the span of a call gets to know of its generation."""

from __future__ import annotations

from typing import Any, cast

from djl_python.core.call_trace import CallTrace
from djl_python.core.types import Branching, Chat, Finish, FinishReason, GenerateRequest, SamplingParams, Timings
from djl_python.handlers.decoding.generation_trace import GenerationTrace
from djl_python.handlers.prepared import Prepared
from djl_python.text.tokens.tokenizer import Tokenizer


class Span:
    """What was sent for a span."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.attributes: dict[str, Any] = {}
        self.trace = CallTrace(self._add)

    def _add(self, events: list[tuple[str, int]], attributes: dict[str, Any]) -> None:
        self.events += [name for name, _ in events]
        self.attributes |= attributes


def prepared(ids: list[int], **request: Any) -> Prepared:
    made = GenerateRequest(**{"prompt": "p", "sampling": SamplingParams(max_new_tokens=9), **request})
    return Prepared(made, ids, "", cast(Tokenizer, None))


def finish(reason: FinishReason, tokens: int, reasoning: int | None = None) -> Finish:
    timings = Timings(queue_s=0.5, inference_s=2.0)
    return Finish(
        reason=reason, text="", prompt="", prompt_tokens=3, generated_tokens=tokens, reasoning_tokens=reasoning,
        timings=timings,
    )  # fmt: skip


def test_tokens_are_sums_and_events_the_first_sequences() -> None:
    span = Span()
    trace = GenerationTrace(
        span.trace, [prepared([1, 2, 3], branching=Branching(n=2)), prepared([4])], streams=True, validated_s=0.1
    )
    trace.first_token(1.0, 1.5)
    trace.first_token(1.0, 2.0)
    assert span.events == ["prefill", "decode"] and span.attributes["djl.prefill_s"] == 0.5
    trace.sequence_ended(finish(FinishReason.EOS, 4))
    trace.sequence_ended(finish(FinishReason.LENGTH, 9, reasoning=2))
    span.trace.send()
    assert span.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 13,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "djl.validation_s": 0.1,
        "djl.prefill_s": 0.5,
        "djl.queue_s": 0.5,
        "djl.inference_s": 2.0,
    }


def test_how_a_chat_is_sampled() -> None:
    span = Span()
    sampling = SamplingParams(max_new_tokens=1, do_sample=True, temperature=0.7, top_p=0.9, presence_penalty=1.0)
    GenerationTrace(
        span.trace, [prepared([1], prompt=Chat(messages=()), sampling=sampling)], streams=False, validated_s=0.0
    )
    span.trace.send()
    asked = {name: value for name, value in span.attributes.items() if name.startswith("gen_ai.request")}
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert asked == {
        "gen_ai.request.max_tokens": 1,
        "gen_ai.request.presence_penalty": 1.0,
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.stream": False,
    }
