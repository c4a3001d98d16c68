"""What routing by prefixes gives: chats of several turns on real workers, routed in three ways in turn.

    python -m tests.bench.routing                            SmolLM2-135M-Instruct, two workers of one thread each
    python -m tests.bench.routing MODEL --chats 4 --turns 2 --rounds 1        to see that it runs

`prefix` and `least_busy` are one server whose model has two workers, by its setting `routing`. `random` is two servers
of one worker each, and a client that draws one for each request: what a balancer that knows nothing of prompts does.
Clients work in a closed loop, each at one chat at a time; a chat's system prompt is one of a few, its questions are
pieces of this repository's changelog. The hit rate is the share of the prompts' tokens that a worker had, by the
answers' own `cached_tokens`. A JSON array of the rows goes to standard output, the same as a table to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from djl_python.testing import running_server
from tests.real import fetch

ROOT: Final = Path(__file__).resolve().parents[2]
WAYS: Final = ("random", "least_busy", "prefix")
ASSISTANTS: Final = 3
_ANSWER_TOKENS: Final = 24


@dataclass
class Seen:
    """What the clients saw of one way."""

    ttft_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def row(self, way: str) -> dict[str, Any]:
        """The row of the table."""
        times = sorted(self.ttft_s)
        return {
            "routing": way,
            "requests": len(times),
            "prompt_tokens": self.prompt_tokens,
            "hit_rate": self.cached_tokens / self.prompt_tokens,
            "ttft_p50_ms": 1000 * times[len(times) // 2],
            "ttft_p99_ms": 1000 * times[min(len(times) - 1, len(times) * 99 // 100)],
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; prints the rows."""
    options = _parser().parse_args(argv)
    model = (options.model or fetch.fetch()).resolve()
    seen = {way: Seen() for way in WAYS}
    for round_ in range(options.rounds):
        for way in WAYS[:: -1 if round_ % 2 else 1]:
            with _servers(model, way) as urls:
                asyncio.run(_clients(urls, options, round_, seen[way]))
            _say(f"round {round_ + 1}, {way}: {seen[way].row(way)}")
    rows = [seen[way].row(way) for way in WAYS]
    _say("\n| routing | requests | prompt tokens | hit rate | TTFT p50 | TTFT p99 |\n|---|---:|---:|---:|---:|---:|")
    for row in rows:
        _say(
            "| {routing} | {requests} | {prompt_tokens} | {hit_rate:.0%} | {ttft_p50_ms:.0f} ms | "
            "{ttft_p99_ms:.0f} ms |".format_map(row)
        )
    print(json.dumps(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="checkpoint directory (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--clients", type=int, default=4, help="that chat at a time (default 4)")
    parser.add_argument("--chats", type=int, default=12, help="in each round (default 12)")
    parser.add_argument("--turns", type=int, default=5, help="of each chat (default 5)")
    parser.add_argument("--rounds", type=int, default=2, help="of each way, in turn (default 2)")
    return parser


@contextlib.contextmanager
def _servers(model: Path, way: str) -> Iterator[list[str]]:
    """Their addresses."""
    settings = f"option.model_id={model}\noption.threads=1\noption.max_rolling_batch_size=16\n"
    settings += "minWorkers=1\n" if way == "random" else f"minWorkers=2\nrouting={way}\n"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "serving.properties").write_text(settings, encoding="utf-8")
        servers = [
            stack.enter_context(running_server("-m", f"bench={folder}")) for _ in range(2 if way == "random" else 1)
        ]
        yield [server.url for server in servers]


async def _clients(urls: Sequence[str], options: argparse.Namespace, round_: int, seen: Seen) -> None:
    chats = iter(range(options.chats))
    chance = random.Random(round_)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:

        async def client() -> None:
            for number in chats:
                await _chat(session, urls, 1000 * round_ + number, options.turns, chance, seen)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(options.clients):
                tasks.create_task(client())


async def _chat(
    session: aiohttp.ClientSession, urls: Sequence[str], number: int, turns: int, chance: random.Random, seen: Seen
) -> None:
    rng, text = random.Random(number), (ROOT / "CHANGELOG.md").read_text("utf-8")
    assistant = rng.randrange(ASSISTANTS)
    messages = [{"role": "system", "content": text[assistant * 3000 : assistant * 3000 + 1500]}]
    for _ in range(turns):
        start, length = rng.randrange(10_000, 60_000), int(min(4000, 250 * rng.lognormvariate(0, 0.9)))
        messages.append({"role": "user", "content": text[start : start + length]})
        messages.append({"role": "assistant", "content": await _ask(session, chance.choice(urls), messages, seen)})


async def _ask(session: aiohttp.ClientSession, url: str, messages: list[dict[str, str]], seen: Seen) -> str:
    body = {"messages": messages, "max_tokens": _ANSWER_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    sent_s, first_s, words = time.perf_counter(), None, []
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(await answer.text())
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                seen.prompt_tokens += event["usage"]["prompt_tokens"]
                seen.cached_tokens += event["usage"]["prompt_tokens_details"]["cached_tokens"]
            for choice in event["choices"]:
                if content := choice["delta"].get("content"):
                    first_s = first_s or time.perf_counter()
                    words.append(content)
    seen.ttft_s.append((first_s or time.perf_counter()) - sent_s)
    return "".join(words)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
