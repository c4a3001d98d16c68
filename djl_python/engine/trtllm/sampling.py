"""Translates sequences for TensorRT-LLM, and its outputs to events.

Runs in the engine process, without TensorRT-LLM: any object with these attributes is taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ...core.errors import GenerationError
from ...core.types import FinishReason, Grammar, SamplingParams, TokenEvent
from ..structural_tags import schema_of, structural_tag

#: Fields of `SamplingParams` that the sampler of TensorRT-LLM 1.2 honours. It takes penalties, min_p, seeds and bad
#: words, and ignores them; it holds back only one of the ids that end a text, so `min_new_tokens` is not honoured; and
#: for a prompt it reports the likeliest tokens, not the prompt's own.
PARAMETERS: Final = frozenset(
    {
        *("max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "ignore_eos", "stop_token_ids"),
        *("logit_bias", "grammar", "logprobs", "top_logprobs"),
    }
)


def sampling_arguments(sampling: SamplingParams, ends: tuple[int, ...]) -> dict[str, Any]:
    """The arguments of `tensorrt_llm.SamplingParams`, without grammar and bias.

    Args:
        ends: ids that end a text; (): TensorRT-LLM asks its tokenizer.
    """
    drawn: dict[str, Any] = {}  # without any of these it takes the likeliest token
    if sampling.do_sample:
        drawn = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    further = () if sampling.ignore_eos else ends[1:]
    return {
        **drawn,
        "end_id": ends[0] if ends else None,
        "max_tokens": sampling.max_new_tokens,
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": [*sampling.stop_token_ids, *further] or None,
        "include_stop_str_in_output": True,  # the token that ends a sequence belongs to it
        "logprobs": max(1, sampling.top_logprobs) if sampling.logprobs else None,  # 0 stands for none
        "detokenize": False,
    }


def grammar_arguments(grammar: Grammar) -> dict[str, Any]:
    """The arguments of `tensorrt_llm.llmapi.GuidedDecodingParams`."""
    if grammar.before is not None:
        return {"structural_tag": structural_tag(grammar.before, grammar)}
    if grammar.kind == "regex":
        return {"regex": grammar.source}
    if grammar.kind == "gbnf":
        return {"grammar": grammar.source}
    if grammar.kind == "json_object":
        return {"json_object": True}
    return {"json": json.dumps(schema_of(grammar))}


def token_events(
    request_id: int, output: Any, reported: int, sampling: SamplingParams, ends: tuple[int, ...]
) -> list[TokenEvent]:
    """The events of the tokens that a sequence has got beyond those `reported` already: one for each.

    Args:
        output: a `tensorrt_llm.llmapi.CompletionOutput`, with all of the sequence's tokens.

    Raises:
        GenerationError: it ended for a reason that is no end of a text.
    """
    finish = _reason(output, sampling)
    ids = list(output.token_ids)
    logprobs: list[Any] = list(output.logprobs or ()) if sampling.logprobs else []
    if finish is not None and len(ids) == reported:  # its last token was left out
        if finish is FinishReason.LENGTH:
            raise GenerationError("TensorRT-LLM ended a sequence without a token")
        ids.append(output.stop_reason if isinstance(output.stop_reason, int) else (*ends, 0)[0])
    events = []
    for index in range(reported, len(ids)):
        entries = logprobs[index] if index < len(logprobs) else {}
        logprob, top = _entry(entries, ids[index], sampling.top_logprobs)
        last = finish if index == len(ids) - 1 else None
        events.append(TokenEvent(request_id=request_id, token_id=ids[index], logprob=logprob, finish=last, top=top))
    return events


def _reason(output: Any, sampling: SamplingParams) -> FinishReason | None:
    match output.finish_reason:
        case None:
            return None
        case "length":
            return FinishReason.LENGTH
        case "stop":
            return FinishReason.STOP if output.stop_reason in sampling.stop_token_ids else FinishReason.EOS
        case reason:
            raise GenerationError(f"TensorRT-LLM ended a sequence: {reason}")


def _entry(
    logprobs: Mapping[int, Any], token: int, alternatives: int
) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    """A token's log-probability (None: it is not among the likeliest), and those of the likeliest, best first."""
    ranked = sorted(((token_id, entry.logprob) for token_id, entry in logprobs.items()), key=lambda pair: -pair[1])
    return logprobs[token].logprob if token in logprobs else None, tuple(ranked[:alternatives])
