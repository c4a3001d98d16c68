"""A closed-loop load: N clients, each sends its next request when its last answer is complete. Runs where it is called.

ttft      request sent -> the read that holds its first token
itl       gap between consecutive reads of one request that hold tokens; all gaps of all requests
tokens_s  tokens generated / wall time of the whole run, ramp and tail included
"""

from __future__ import annotations

import asyncio
import itertools
import random
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from ..ipc import event_loop
from .dialects import DIALECTS, Dialect, lines_of
from .http import Connection, Endpoint, Reply, request_bytes

#: Short English words: about one token each for most tokenizers.
WORDS: Final = """
    the of and to in is that for it as with be this by are not or from on if we can which will all value name file text
    list number type key code line time set data test path call result size index read write open close first last new
    old next other each when where then than only such string state mode input output process server client message
    request response format version word order point memory event signal option command
    """.split()


@dataclass(frozen=True)
class Load:
    """What to request, and with how many clients.

    Attributes:
        dialect: a name in DIALECTS, or a Dialect.
        path: URL path, instead of the dialect's.
        extra: merged into every body; a field that is None here is left out of the body.
        seed: of the prompts; another seed makes other prompts, which no cache holds.
        keep_alive: reuse a client's connection; otherwise each request opens its own.
    """

    url: str
    concurrency: int
    requests: int
    prompt_words: int = 128
    output_tokens: int = 64
    dialect: str | Dialect = "openai"
    model: str = ""
    path: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    seed: str = "0"
    timeout_s: float = 600.0
    keep_alive: bool = False

    @property
    def api(self) -> Dialect:
        return DIALECTS[self.dialect] if isinstance(self.dialect, str) else self.dialect


@dataclass
class Record:
    """One request: when it was sent, and its answer or failure."""

    sent_s: float = 0.0
    reply: Reply = field(default_factory=Reply)
    failure: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run measured. Latencies are of answers with any text, which a token may lack; None where none has any.

    Attributes:
        failed: requests without a complete answer of at most the tokens requested; `requests` counts them, nothing
            else does.
        short: answers with fewer tokens than requested.
        pieces: reads that held tokens; fewer than tokens where a server sends, or TCP delivers, several at once.
        prompt_tokens: mean number of a prompt's tokens as the server counted them; None if it does not say.
        client_cpu_s: CPU seconds of the load generator itself during the run.
    """

    concurrency: int
    requests: int
    failed: int
    short: int
    tokens: int
    pieces: int
    prompt_tokens: float | None
    wall_s: float
    tokens_s: float
    requests_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    client_cpu_s: float
    first_failure: str = ""


def prompts(count: int, words: int, seed: str) -> list[str]:
    """`count` different prompts of `words` words, the same for the same seed."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=words)) for _ in range(count)]


def percentile(values: Sequence[float], percent: float) -> float | None:
    """A percentile, by linear interpolation between closest ranks; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


async def drive(load: Load) -> list[Record]:
    """Run the load; one record per request, in the order in which they ended.

    Raises:
        ValueError: load.url is not a URL.
    """
    endpoint, api = Endpoint.parse(load.url), load.api
    texts = prompts(load.requests, load.prompt_words, load.seed)
    waiting = iter([_request(load, api, endpoint, text) for text in texts])  # made before the clock runs
    records: list[Record] = []

    async def client() -> None:
        connection: Connection | None = None
        for request in waiting:
            record = Record()
            records.append(record)
            try:
                async with asyncio.timeout(load.timeout_s):
                    if connection is None or not connection.open:
                        connection = await Connection.connect(endpoint)
                    record.sent_s = time.perf_counter()
                    record.reply = await connection.post(request)
            except TimeoutError:
                record.failure = f"no complete answer within {load.timeout_s:g} s"
            except OSError as exc:
                record.failure = f"{type(exc).__name__}: {exc}"
            if connection is not None and (record.failure or not load.keep_alive):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    await asyncio.gather(*(client() for _ in range(load.concurrency)))
    return records


def _request(load: Load, api: Dialect, endpoint: Endpoint, prompt: str) -> bytes:
    merged = {**api.body(prompt, load.output_tokens, load.model), **load.extra}
    body = msgspec.json.encode({key: value for key, value in merged.items() if value is not None})
    path = load.path or api.path
    return request_bytes(endpoint, path, body, headers=load.headers, keep_alive=load.keep_alive)


def summarize(load: Load, records: Sequence[Record], wall_s: float, client_cpu_s: float) -> Result:
    """Parse the recorded answers and reduce them to a Result."""
    ttft_s: list[float] = []
    itl_s: list[float] = []
    counts: list[int] = []
    prompt_counts: list[int] = []
    failures: list[str] = []
    for record in records:
        try:
            if record.failure or record.reply.status != 200:
                raise ValueError(record.failure or _refusal(record.reply))
            generation = load.api.read(lines_of(record.reply.pieces()))
            times_s = sorted(set(generation.token_times_s))
            if not max(len(times_s), 1) <= generation.tokens <= load.output_tokens:
                raise ValueError(
                    f"{generation.tokens} tokens in {len(times_s)} pieces; expected at most {load.output_tokens}"
                )
        except (ValueError, LookupError) as exc:
            failures.append(str(exc))
            continue
        if times_s:
            ttft_s.append(times_s[0] - record.sent_s)
        itl_s += [later - earlier for earlier, later in itertools.pairwise(times_s)]
        counts.append(generation.tokens)
        if generation.prompt_tokens is not None:
            prompt_counts.append(generation.prompt_tokens)

    return Result(
        concurrency=load.concurrency,
        requests=len(records),
        failed=len(failures),
        short=sum(count < load.output_tokens for count in counts),
        tokens=sum(counts),
        pieces=len(ttft_s) + len(itl_s),
        prompt_tokens=round(sum(prompt_counts) / len(prompt_counts), 1) if prompt_counts else None,
        wall_s=round(wall_s, 3),
        tokens_s=round(sum(counts) / wall_s, 1),
        requests_s=round(len(counts) / wall_s, 2),
        ttft_p50_ms=_milliseconds(ttft_s, 50),
        ttft_p99_ms=_milliseconds(ttft_s, 99),
        itl_p50_ms=_milliseconds(itl_s, 50),
        itl_p99_ms=_milliseconds(itl_s, 99),
        client_cpu_s=round(client_cpu_s, 3),
        first_failure=failures[0] if failures else "",
    )


def _milliseconds(values_s: Sequence[float], percent: float) -> float | None:
    found = percentile(values_s, percent)
    return None if found is None else round(found * 1e3, 2)


def _refusal(reply: Reply) -> str:
    answer = b"".join(data for _, data in reply.pieces())[:300].decode(errors="replace")
    hint = " (the variable DJL_API_KEY sends a key, --header anything else)" if reply.status in (401, 403) else ""
    return f"HTTP {reply.status}: {answer}{hint}"


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(load: Load) -> Result:
    """Drive the load to its end and measure it. SIGINT and SIGTERM end it, with SystemExit."""
    start_s, start_cpu_s = time.perf_counter(), _cpu_s()
    records = event_loop.run_stoppable(drive(load))
    wall_s, client_cpu_s = time.perf_counter() - start_s, _cpu_s() - start_cpu_s
    return summarize(load, records, wall_s, client_cpu_s)


def words_for(load: Load, prompt_tokens: int) -> int:
    """How many words make a prompt of about `prompt_tokens` tokens, by asking the server twice.

    If the server does not count its prompts' tokens, one word per token is assumed.

    Raises:
        ValueError: the server does not answer.
    """
    words = prompt_tokens
    for attempt in range(2):
        one = replace(load, concurrency=1, requests=1, prompt_words=words, output_tokens=1, seed=f"words/{attempt}")
        answer = run(one)
        if answer.failed:
            raise ValueError(f"{load.url}: {answer.first_failure}")
        if not answer.prompt_tokens:
            return prompt_tokens
        words = max(1, round(words * prompt_tokens / answer.prompt_tokens))
    return words
