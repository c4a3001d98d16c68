"""A closed-loop load generator: N clients, each sends its next request when its last answer is complete.

    python -m tests.bench.load --url http://127.0.0.1:8080 -c 8 -n 64

Prints one JSON object. Runs in a process of its own; needs aiohttp. While requests run, bytes are only stamped with
the time they were read: parsing waits until the end, so that on a small machine the client costs the server little
(`client_cpu_s` says how much).

    ttft      request sent -> the read that holds its first token
    itl       gap between consecutive reads of one request that hold tokens; all gaps of all requests
    tokens_s  tokens generated / wall time of the whole run, ramp and tail included
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import random
import resource
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import aiohttp

#: Short English words: about one token each for most tokenizers.
WORDS: Final = """
    the of and to in is that for it as with be this by are not or from on if we can which will all value name file text
    list number type key code line time set data test path call result size index read write open close first last new
    old next other each when where then than only such string state mode input output process server client message
    request response format version word order point memory event signal option command
    """.split()


@dataclass(frozen=True)
class Load:
    """What to ask for, and how hard."""

    url: str
    concurrency: int
    requests: int
    input_words: int = 32
    output_tokens: int = 64
    dialect: str = "lmi"
    path: str = ""  # empty: the dialect's own
    seed: int = 0  # of the prompts: another seed asks other questions
    timeout_s: float = 600.0


@dataclass
class Record:
    """One request as it happened. `reads` are (seconds, bytes) as they came in."""

    sent_s: float = 0.0
    ended_s: float = 0.0
    status: int = 0
    failure: str = ""
    reads: list[tuple[float, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class Generation:
    """One answer, read: when its tokens came, how many the server says there were, and the whole text."""

    token_times_s: list[float]
    tokens: int
    text: str


class Dialect(Protocol):
    """How one API is asked for a stream, and how its stream reads. New ones go into DIALECTS."""

    path: str

    def body(self, prompt: str, output_tokens: int) -> Mapping[str, Any]:
        """A streaming request for exactly `output_tokens` tokens."""
        ...

    def read(self, lines: Iterable[tuple[float, bytes]]) -> Generation:
        """Lines with the time each was complete -> the answer. Raises ValueError if it is not a complete one."""
        ...


class Lmi:
    """LMI's schema: jsonlines, a token a line; the last line has the text and the details."""

    path = "/invocations"

    def body(self, prompt: str, output_tokens: int) -> Mapping[str, Any]:
        parameters = {"max_new_tokens": output_tokens, "ignore_eos_token": True, "details": True}
        return {"inputs": prompt, "parameters": parameters, "stream": True}

    def read(self, lines: Iterable[tuple[float, bytes]]) -> Generation:
        times_s: list[float] = []
        last: dict[str, Any] = {}
        for time_s, line in lines:
            last = json.loads(line)
            if "error" in last or last.get("details", {}).get("finish_reason") == "error":
                raise ValueError(f"the stream ends with an error: {line[:300]!r}")
            times_s.append(time_s)
        if "generated_text" not in last:
            raise ValueError(f"the stream has no last line, only {len(times_s)} lines")
        return Generation(times_s, last["details"]["generated_tokens"], last["generated_text"])


DIALECTS: Mapping[str, Dialect] = {"lmi": Lmi()}


@dataclass(frozen=True)
class Result:
    """What a run measured. Times in milliseconds; None where nothing succeeded."""

    concurrency: int
    requests: int
    failed: int
    tokens: int
    wall_s: float
    tokens_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    client_cpu_s: float
    first_failure: str = ""


def prompts(count: int, words: int, seed: int) -> list[str]:
    """`count` different prompts of `words` words, the same for the same seed."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=words)) for _ in range(count)]


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between closest ranks; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def lines_of(reads: Iterable[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """Non-empty lines, each with the time at which it was complete."""
    lines: list[tuple[float, bytes]] = []
    rest, time_s = b"", 0.0
    for time_s, data in reads:
        *complete, rest = (rest + data).split(b"\n")
        lines += [(time_s, line) for line in complete if line.strip()]
    return [*lines, (time_s, rest)] if rest.strip() else lines


async def _ask(session: aiohttp.ClientSession, load: Load, dialect: Dialect, prompt: str) -> Record:
    record = Record(sent_s=time.perf_counter())
    try:
        body = dialect.body(prompt, load.output_tokens)
        async with session.post(load.url.rstrip("/") + (load.path or dialect.path), json=body) as response:
            record.status = response.status
            async for data in response.content.iter_any():
                record.reads.append((time.perf_counter(), data))
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        record.failure = f"{type(exc).__name__}: {exc}"
    record.ended_s = time.perf_counter()
    return record


async def drive(load: Load) -> list[Record]:
    """Run the load; one record per request, in the order in which they ended."""
    dialect = DIALECTS[load.dialect]
    waiting = iter(prompts(load.requests, load.input_words, load.seed))
    records: list[Record] = []

    async def client(session: aiohttp.ClientSession) -> None:
        for prompt in waiting:
            records.append(await _ask(session, load, dialect, prompt))

    timeout = aiohttp.ClientTimeout(total=load.timeout_s)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await asyncio.gather(*(client(session) for _ in range(load.concurrency)))
    return records


def summarize(load: Load, records: Sequence[Record], wall_s: float, client_cpu_s: float) -> Result:
    """Parse what was recorded and reduce it to numbers."""
    dialect = DIALECTS[load.dialect]
    ttft_s: list[float] = []
    itl_s: list[float] = []
    tokens = 0
    failures: list[str] = []
    for record in records:
        try:
            if record.failure or record.status != 200:
                answer = b"".join(data for _, data in record.reads)[:300].decode(errors="replace")
                raise ValueError(record.failure or f"HTTP {record.status}: {answer}")
            generation = dialect.read(lines_of(record.reads))
        except (ValueError, LookupError) as exc:
            failures.append(str(exc))
            continue
        times_s = sorted(set(generation.token_times_s))
        ttft_s.append(times_s[0] - record.sent_s)
        itl_s += [later - earlier for earlier, later in itertools.pairwise(times_s)]
        tokens += generation.tokens

    def milliseconds(values_s: Sequence[float], percent: float) -> float | None:
        found = percentile(values_s, percent)
        return None if found is None else round(found * 1e3, 2)

    return Result(
        concurrency=load.concurrency,
        requests=len(records),
        failed=len(failures),
        tokens=tokens,
        wall_s=round(wall_s, 3),
        tokens_s=round(tokens / wall_s, 1),
        ttft_p50_ms=milliseconds(ttft_s, 50),
        ttft_p99_ms=milliseconds(ttft_s, 99),
        itl_p50_ms=milliseconds(itl_s, 50),
        itl_p99_ms=milliseconds(itl_s, 99),
        client_cpu_s=round(client_cpu_s, 3),
        first_failure=failures[0] if failures else "",
    )


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(load: Load) -> Result:
    """Drive the load to its end and measure it."""
    start_s, start_cpu_s = time.perf_counter(), _cpu_s()
    records = asyncio.run(drive(load))
    wall_s, client_cpu_s = time.perf_counter() - start_s, _cpu_s() - start_cpu_s
    return summarize(load, records, wall_s, client_cpu_s)


def main() -> int:
    """Command line; exit status 1 if a request failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--path", default="", help="instead of the dialect's own path")
    parser.add_argument("--dialect", choices=sorted(DIALECTS), default="lmi")
    parser.add_argument("-c", "--concurrency", type=int, default=8)
    parser.add_argument("-n", "--requests", type=int, default=32)
    parser.add_argument("--input-words", type=int, default=32, help="words per prompt, about a token each")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for one request")
    result = run(Load(**vars(parser.parse_args())))
    print(json.dumps(dataclasses.asdict(result)))
    return 1 if result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
