"""Translates sequences for vLLM, and its outputs to events.

Runs in the engine process, without vLLM: any object with these attributes is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...core.errors import GenerationError
from ...core.types import FinishReason, Grammar, SamplingParams, TokenEvent
from ..structural_tags import schema_of, structural_tag

#: Fields of `SamplingParams` that vLLM has: no typical_p.
PARAMETERS: Final = frozenset(SamplingParams.__struct_fields__) - {"typical_p"}

#: vLLM's reasons for an end that leaves a whole answer. Its others, such as "error" and "abort", mean that it gave up.
_ENDS: Final = frozenset({"stop", "length", "repetition"})

_Alternatives = tuple[tuple[int, float], ...]


def sampling_arguments(sampling: SamplingParams) -> dict[str, Any]:
    """The arguments of `vllm.SamplingParams`, without the grammar and bad words."""
    drawn: dict[str, Any] = {"temperature": 0.0}
    if sampling.do_sample:
        drawn = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
        }
    return {
        **drawn,
        "max_tokens": sampling.max_new_tokens,
        "min_tokens": sampling.min_new_tokens,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logit_bias": sampling.logit_bias or None,
        "logprobs": sampling.top_logprobs if sampling.logprobs else None,
        "prompt_logprobs": sampling.prompt_logprobs,
        "detokenize": False,
    }


def grammar_arguments(grammar: Grammar) -> dict[str, Any]:
    """The arguments of `vllm.sampling_params.StructuredOutputsParams`."""
    if grammar.before is not None:
        return {"structural_tag": structural_tag(grammar.before, grammar)}
    if grammar.kind == "regex":
        return {"regex": grammar.source}
    if grammar.kind == "gbnf":
        return {"grammar": grammar.source}
    return {"json": schema_of(grammar)}


def token_events(
    request_id: int, output: Any, sampling: SamplingParams, running_s: float | None = None
) -> list[TokenEvent]:
    """The events of a sequence in one of vLLM's steps: one for each token.

    Args:
        output: a `vllm.RequestOutput` with the new tokens.
        running_s: how long the engine has worked on it; only with the first tokens.

    Raises:
        GenerationError: vLLM gave the sequence up, whether this step has tokens of it or not.
    """
    (part,) = output.outputs
    if part.finish_reason is not None and part.finish_reason not in _ENDS:
        raise GenerationError(f"vLLM ended the sequence before its end: {part.finish_reason}")
    ids = list(part.token_ids)
    events = []
    for index, token in enumerate(ids):
        logprob: float | None = None
        top: _Alternatives = ()
        if part.logprobs is not None:
            logprob, top = _entry(part.logprobs[index], token, sampling.top_logprobs)
        finish = _reason(part, sampling) if index == len(ids) - 1 else None
        prompt: tuple[tuple[float | None, _Alternatives], ...] = ()
        ranks: tuple[int | None, ...] = ()
        if index == 0 and sampling.prompt_logprobs is not None and output.prompt_logprobs:
            prompt = _prompt(output.prompt_token_ids, output.prompt_logprobs, sampling.prompt_logprobs)
            ranks = _ranks(output.prompt_token_ids, output.prompt_logprobs)
        events.append(
            TokenEvent(
                request_id=request_id,
                token_id=token,
                logprob=logprob,
                finish=finish,
                top=top,
                prompt=prompt,
                running_s=running_s if index == 0 else None,
                cached_tokens=output.num_cached_tokens if index == 0 else None,
                prompt_ranks=ranks,
            )
        )
    return events


def _reason(part: Any, sampling: SamplingParams) -> FinishReason | None:
    if part.finish_reason is None:
        return None
    if part.finish_reason == "length":
        return FinishReason.LENGTH
    return FinishReason.STOP if part.stop_reason in sampling.stop_token_ids else FinishReason.EOS


def _entry(logprobs: Mapping[int, Any], token: int, alternatives: int) -> tuple[float, _Alternatives]:
    """A token's log-probability, and those of the likeliest at its position, best first."""
    ranked = sorted(((token_id, entry.logprob) for token_id, entry in logprobs.items()), key=lambda pair: -pair[1])
    return logprobs[token].logprob, tuple(ranked[:alternatives])


def _prompt(
    ids: Sequence[int], logprobs: Sequence[Mapping[int, Any] | None], alternatives: int
) -> tuple[tuple[float | None, _Alternatives], ...]:
    return tuple(
        (None, ()) if entry is None else _entry(entry, token, alternatives)
        for token, entry in zip(ids, logprobs, strict=True)
    )


def _ranks(ids: Sequence[int], logprobs: Sequence[Mapping[int, Any] | None]) -> tuple[int | None, ...]:
    return tuple(None if entry is None else entry[token].rank for token, entry in zip(ids, logprobs, strict=True))
