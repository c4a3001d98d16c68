"""What averages hide, of ours alone: long prompts beside streams, a prompt asked again, drafts that help and don't."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace
from typing import Any, Final

from djl_python.bench.load import Load, Result, drive, run, summarize
from tests.bench.compare import Plan, System, Words, new_seed, served

PROMPT_TOKENS: Final = 2000
STREAMS: Final = 8
#: Long enough for several of the prompts to arrive while these are generated.
STREAM_TOKENS: Final = 192
#: Long enough for a text to have begun again.
REPEATED_TOKENS: Final = 256
#: Tokens of the longest sequence; a tenth for tokenizers that do not split evenly.
LONGEST: Final = PROMPT_TOKENS * 11 // 10 + STREAM_TOKENS


def measure(plan: Plan) -> dict[str, Any]:
    """Both scenarios, on one server.

    Returns:
        `itl_p50_ms`, `itl_p99_ms` of streams while prompts arrive; `ttft_first_ms`, `ttft_again_ms` of a prompt, the
        medians of three; `prompt_tokens` of both; `failed`, and the first failure.
    """
    words = Words(plan.checkpoint)
    with served(plan, System("", None), STREAMS + 1, LONGEST) as server:
        long = Load(server.url, 1, 3, words.for_tokens(PROMPT_TOKENS), 2, model="bench", seed=new_seed())
        run(replace(long, requests=1, seed=new_seed()))
        first, again = run(long), run(long)
        streams = Load(server.url, STREAMS, STREAMS, words.for_tokens(64), STREAM_TOKENS, model="bench")
        run(replace(streams, output_tokens=4, seed=new_seed()))
        steady, arriving = asyncio.run(_together(replace(streams, seed=new_seed()), replace(long, seed=new_seed())))
    results = (first, again, steady, arriving)
    return {
        "itl_p50_ms": steady.itl_p50_ms,
        "itl_p99_ms": steady.itl_p99_ms,
        "ttft_first_ms": first.ttft_p50_ms,
        "ttft_again_ms": again.ttft_p50_ms,
        "prompt_tokens": first.prompt_tokens,
        "failed": sum(result.failed for result in results),
        "first_failure": next((result.first_failure for result in results if result.failed), ""),
    }


def speculation(plan: Plan) -> dict[str, dict[str, float]]:
    """Tokens/s of one client without drafts and with prompt lookup: text -> option.speculative -> the median of three.

    A model that takes the likeliest token each time soon repeats itself, whatever its weights; one that draws from all
    of them never does.
    """
    texts: dict[str, dict[str, Any]] = {
        "repeats itself": {"temperature": 0.0},
        "does not": {"temperature": 1.0, "seed": 7},
    }
    rates_by_text: dict[str, dict[str, list[float]]] = {text: {"none": [], "ngram": []} for text in texts}
    words = Words(plan.checkpoint).for_tokens(plan.prompt_tokens)
    for number in range(3):
        for mode in ("none", "ngram"):
            with served(
                plan, System("", None, (("speculative", mode),)), 1, plan.max_tokens + REPEATED_TOKENS
            ) as server:
                for text, how in texts.items():
                    extra = {"ignore_eos": True, **how}
                    load = Load(server.url, 1, 3, words, REPEATED_TOKENS, model="bench", extra=extra, seed=str(number))
                    run(replace(load, requests=1, seed="warm"))
                    rates_by_text[text][mode].append(run(load).tokens_s or 0.0)
    return {
        text: {mode: statistics.median(rates) for mode, rates in by_mode.items()}
        for text, by_mode in rates_by_text.items()
    }


async def _together(steady: Load, arriving: Load) -> tuple[Result, Result]:
    """Both loads at once; their rates mean nothing, their times do."""
    results = await asyncio.gather(drive(steady), drive(arriving))
    return summarize(steady, results[0], 1.0, 0.0), summarize(arriving, results[1], 1.0, 0.0)
