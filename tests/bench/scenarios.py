"""What averages hide, of ours alone: long prompts that arrive while others generate, and a prompt asked again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from djl_python.bench.load import Load, Result, drive, run, summarize

from .compare import Plan, System, Words, new_seed, served

PROMPT_TOKENS: Final = 2000
STREAMS: Final = 8
#: Long enough for several of the prompts to arrive while these are generated.
STREAM_TOKENS: Final = 192
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


async def _together(steady: Load, arriving: Load) -> tuple[Result, Result]:
    """Both loads at once; their rates mean nothing, their times do."""
    found = await asyncio.gather(drive(steady), drive(arriving))
    return summarize(steady, found[0], 1.0, 0.0), summarize(arriving, found[1], 1.0, 0.0)
