"""The subcommand `djl-serving bench`: arguments, one measurement, a table. Runs in the command's own process.

Exit codes: 0 every request was answered; 1 some were not, or nothing could be measured; 2 a mistake in the arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from ..commands.models import add_settings, settings_given
from ..commands.parsing import parse
from ..core.help_text import HelpFormatter
from ..testing import running_server
from .arguments import add_headers, counts, headers_of, json_object, rates
from .cpu import cpu_seconds
from .dialects import DIALECTS
from .load import Load, run, words_for
from .report import medians, shown
from .traffic import command as traffic
from .workload import read_items

_DESCRIPTION: Final = """\
Measure an LLM server: tokens/s, requests/s, time to the first token (TTFT), between tokens and to the end, at several
numbers of clients that each send their next request when the last is answered; or at several rates of requests that
wait for no other (--request-rate). Every prompt is different; a file may have prompts, or their lengths (--dataset).

TARGET is a URL, or a model directory: then a server is started with it, measured and stopped.
"""
_EXAMPLES: Final = """\
examples:
  djl-serving bench /models/llama-3
  djl-serving bench /models/llama-3 --dtype bf16 --set speculative=ngram     ... with these settings
  djl-serving bench http://127.0.0.1:8000 --model llama --dialect openai-chat --concurrency 1,16,64
  djl-serving bench http://127.0.0.1:8080 --request-rate 1,2,4 --dataset ShareGPT.json
  djl-serving bench http://127.0.0.1:3000 --dialect tgi --rounds 1 --json result.json
  djl-serving bench http://127.0.0.1:8080 --record traffic.jsonl       clients send to 127.0.0.1:8081 meanwhile
  djl-serving bench http://127.0.0.1:8080 --replay traffic.jsonl --compare http://127.0.0.1:9090

columns:
  sent/s        requests a second that were sent (--request-rate); requests/s are those that were answered
  TTFT          from sending a request to the bytes that hold its first token; p50, p90 and p99 are percentiles; with
                --request-rate from when it was due, so that a client that is late does not hide it
  inter-token   between pieces of one answer that hold tokens
  latency       from sending a request, or when it was due, to the end of its answer
  tokens/s      all tokens over the wall time of the run, ramp and tail included; of several rounds, the median
  short         answers with fewer tokens than asked for (an API that can't go on after the end of sequence)
  failed        requests without a complete answer; they are in no other column
  client CPU    what the load generator took: it shares the machine
"""


def main(arguments: Sequence[str]) -> int:
    """Run `djl-serving bench ARGUMENTS`; returns the exit code."""
    made = parser()
    options = parse(made, arguments)
    settings_given(made, options, options.target if _is_url(options.target) else "")
    if options.compare and not options.replay:
        made.error("--compare needs --replay: what to play to both servers")
    try:
        with terminable(), _target(options) as (url, cpu):
            if options.record or options.replay:
                return traffic.run(options, url)
            result = _measure(options, url, cpu)
    except (ValueError, RuntimeError) as error:
        print(f"djl-serving bench: {error}", file=sys.stderr)
        return 1
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    print(shown(result["rows"], width))
    for name, seconds in result["server_cpu_s"].items():
        print(f"CPU of the {name}: {seconds} s")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if other := next((row["answered_by"] for row in result["rows"] if row["answered_by"]), ""):
        print(f"djl-serving bench: {url} has no model {options.model}: {other} answered", file=sys.stderr)
    failed = [row for row in result["rows"] if row["failed"]]
    for row in failed:
        print(f"{row['failed']} of {row['requests']} failed: {row['first_failure']}", file=sys.stderr)
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving bench",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    made.add_argument("target", metavar="TARGET", help="http://host:port, or a model directory")
    made.add_argument("--dialect", choices=sorted(DIALECTS), default="openai", help="which API (default openai)")
    made.add_argument("--path", default="", help="instead of the API's own path")
    made.add_argument("--model", default="", help="the model's name in bodies")
    made.add_argument("--concurrency", type=counts, default=[1, 8, 32], metavar="N,...", help="default 1,8,32")
    made.add_argument(
        "--request-rate",
        type=rates,
        default=[],
        metavar="R,...",
        help="send so many requests a second, at random times (a Poisson process), in place of --concurrency",
    )
    made.add_argument(
        "--dataset",
        type=Path,
        metavar="FILE",
        help='requests, as a JSON array or JSON Lines: {"prompt", "output_tokens"}, {"prompt_tokens", '
        '"output_tokens"}, or ShareGPT\'s {"conversations"}',
    )
    made.add_argument("--prompt-tokens", type=int, default=128, help="about this many; counted by the server")
    made.add_argument("--output-tokens", type=int, default=64, help="of each answer (default 64)")
    made.add_argument("--rounds", type=int, default=3, help="of which the medians count (default 3)")
    made.add_argument(
        "--requests",
        type=int,
        help="per round and concurrency (default: 3 a client, at least 8), or rate (default: 10 s of it, at least 16)",
    )
    made.add_argument(
        "--body", type=json_object, default={}, metavar="JSON", help="merged into every body; null removes a field"
    )
    add_headers(made)
    add_settings(made)
    made.add_argument("--keep-alive", action="store_true", help="reuse connections (default: one a request)")
    made.add_argument("--timeout", type=float, default=600.0, metavar="S", help="for one request (default 600)")
    made.add_argument("--start-timeout", type=float, default=600.0, metavar="S", help="for a server to be ready")
    made.add_argument("--seed", default="", help="of the prompts (default: new ones every time)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the result here, every round in it")
    traffic.add_options(made)
    return made


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """In this block SIGTERM raises SystemExit: by default it would end this process, but not the servers it started."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_url(target: str) -> bool:
    return target.startswith(("http://", "https://"))


Cpu = Callable[[], dict[str, float]]


@contextlib.contextmanager
def _target(options: argparse.Namespace) -> Iterator[tuple[str, Cpu]]:
    """The URL to measure, and a function that gives the server's CPU time (empty if it was not started here)."""
    if _is_url(options.target):
        yield options.target.rstrip("/"), dict
        return
    started = ("-m", options.target, "--log-level", "warning", *(f"--set={text}" for text in options.set))
    with running_server(*started, start_timeout_s=options.start_timeout) as server:
        yield server.url, lambda: cpu_seconds(server.process.pid)


def default_requests(concurrency: int, request_rate: float | None = None) -> int:
    """How many requests a round at this concurrency, or this rate, has by default."""
    return max(8, 3 * concurrency) if request_rate is None else max(16, round(10 * request_rate))


def _steps(options: argparse.Namespace, load: Load) -> Iterator[tuple[str, Load]]:
    """The measurements in order, each with its description."""
    for rate in options.request_rate:
        yield f"{rate:g} requests/s", replace(load, request_rate=rate, concurrency=1)
    for concurrency in () if options.request_rate else options.concurrency:
        yield f"{concurrency} clients", replace(load, concurrency=concurrency)


def _measure(options: argparse.Namespace, url: str, cpu: Cpu) -> dict[str, Any]:
    load = Load(
        url,
        concurrency=1,
        requests=1,
        output_tokens=options.output_tokens,
        dialect=options.dialect,
        model=options.model,
        path=options.path,
        extra=options.body,
        headers=headers_of(options),
        timeout_s=options.timeout,
        keep_alive=options.keep_alive,
    )
    items = read_items(options.dataset) if options.dataset else []
    words = words_for(load, options.prompt_tokens)
    load = replace(load, prompt_words=words, items=items, words_of_token=words / options.prompt_tokens)
    seed = options.seed or secrets.token_hex(4)
    cpu_before = cpu()
    rounds: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        for words_of_step, at in _steps(options, load):
            step = at.concurrency if at.request_rate is None else f"rate {at.request_rate:g}"
            if not number:  # warm up once per step: some things are made at first use
                run(replace(at, requests=at.concurrency, request_rate=None, seed=f"{seed}/warm/{step}"))
            requests = options.requests or default_requests(at.concurrency, at.request_rate)
            result = run(replace(at, requests=requests, seed=f"{seed}/{number}/{step}"))
            rounds.setdefault(words_of_step, []).append(msgspec.structs.asdict(result))
            print(f"  round {number + 1}, {words_of_step}: {result.tokens_s} tokens/s", file=sys.stderr)
    return {
        "target": options.target,
        "dialect": options.dialect,
        "output_tokens": options.output_tokens,
        "seed": seed,
        "rows": [medians(of_one) for of_one in rounds.values()],
        "rounds": [round_ for of_one in rounds.values() for round_ in of_one],
        "server_cpu_s": {
            name: round(seconds - cpu_before.get(name, 0.0), 2) for name, seconds in sorted(cpu().items())
        },
    }
