"""Generates a load on a server. Runs in the caller's process.

It is a closed loop: N clients, each sends its next request when its last answer is complete. Or an open one: requests
are sent at a rate, as a Poisson process, whether or not others have been answered.

ttft      request sent (in an open loop, due) -> the read that holds its first token
itl       gap between consecutive reads of one request that hold tokens; all gaps of all requests
latency   request sent, or due -> the end of its answer
tokens_s  tokens generated / wall time of the whole run, ramp and tail included
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ..ipc import event_loop
from .dialects import DIALECTS, BenchDialect, lines_of
from .http import BenchConnection, Endpoint, HttpReply, request_bytes
from .workload import Item, WantedRequest, arrivals_s, chosen, prompts


@dataclass(frozen=True)
class Load:
    """The requests of a load, and its clients.

    Attributes:
        dialect: a name in DIALECTS, or a Dialect.
        path: URL path, instead of the dialect's.
        extra: merged into every body; a field that is None here is left out of the body.
        seed: of the prompts; another seed makes other prompts, which no cache holds.
        keep_alive: reuse a client's connection; otherwise each request opens its own.
        request_rate: requests a second of an open loop, for which `concurrency` does not count; None: a closed loop.
        items: requests of a file, in place of prompts that are made.
        words_of_token: how many of the words of prompts make a token, where items give lengths.
    """

    url: str
    concurrency: int
    requests: int
    prompt_words: int = 128
    output_tokens: int = 64
    dialect: str | BenchDialect = "openai"
    model: str = ""
    path: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    seed: str = "0"
    timeout_s: float = 600.0
    keep_alive: bool = False
    request_rate: float | None = None
    items: Sequence[Item] = ()
    words_of_token: float = 1.0

    def wanted(self) -> list[WantedRequest]:
        """The requests of this load."""
        if self.items:
            return chosen(
                self.items,
                self.requests,
                self.seed,
                output_tokens=self.output_tokens,
                words_of_token=self.words_of_token,
            )
        texts = prompts(self.requests, self.prompt_words, self.seed)
        return [WantedRequest(text, self.output_tokens) for text in texts]

    @property
    def api(self) -> BenchDialect:
        return DIALECTS[self.dialect] if isinstance(self.dialect, str) else self.dialect


@dataclass
class RequestRecord:
    """One request: when it was sent (or due), and its answer or failure. `output_tokens`: the requested number."""

    sent_s: float = 0.0
    ended_s: float = 0.0
    output_tokens: int = 0
    reply: HttpReply = field(default_factory=HttpReply)
    failure: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a run. Latencies are of answers with text, which a token may lack; None without any.

    Attributes:
        failed: requests without a complete answer of at most the tokens requested; `requests` counts them, nothing
            else does.
        short: answers with fewer tokens than requested.
        pieces: reads that held tokens; fewer than tokens where a server sends, or TCP delivers, several at once.
        prompt_tokens: mean number of a prompt's tokens as the server counted them; None if it does not say.
        client_cpu_s: CPU seconds of the load generator itself during the run.
        request_rate: requests a second that were sent; None for a closed loop, and then `concurrency` counts.
        answered_by: the model that answers name, if it is not the requested one; else "".
    """

    concurrency: int | None
    request_rate: float | None = None
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
    ttft_p90_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p90_ms: float | None
    itl_p99_ms: float | None
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p99_ms: float | None
    client_cpu_s: float
    first_failure: str = ""
    answered_by: str = ""


def percentile(values: Sequence[float], percent: float) -> float | None:
    """A percentile, by linear interpolation between closest ranks; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


async def drive(load: Load) -> list[RequestRecord]:
    """Run the load; one record per request, in the order in which they began.

    Raises:
        ValueError: load.url is not a URL.
    """
    endpoint, api = Endpoint.parse(load.url), load.api
    # Made before the clock runs.
    requests = [(_request(load, api, endpoint, wanted), wanted.output_tokens) for wanted in load.wanted()]
    records: list[RequestRecord] = []

    async def send(request: bytes, record: RequestRecord, connection: BenchConnection | None) -> BenchConnection | None:
        """Send one request and wait for its answer; gives the connection, if it may be used again."""
        records.append(record)
        try:
            async with asyncio.timeout(load.timeout_s):
                if connection is None or not connection.open:
                    connection = await BenchConnection.connect(endpoint)
                record.sent_s = record.sent_s or time.perf_counter()
                record.reply = await connection.post(request)
        except TimeoutError:
            record.failure = f"no complete answer within {load.timeout_s:g} s"
        except OSError as exc:
            record.failure = f"{type(exc).__name__}: {exc}"
        record.ended_s = time.perf_counter()
        if connection is not None and (record.failure or not load.keep_alive):
            connection.close()
            return None
        return connection

    async def client(waiting: Iterator[tuple[bytes, int]]) -> None:
        connection: BenchConnection | None = None
        for request, output_tokens in waiting:
            connection = await send(request, RequestRecord(output_tokens=output_tokens), connection)
        if connection is not None:
            connection.close()

    async def arrival(at_s: float, request: bytes, output_tokens: int) -> None:
        """A request of an open loop. Its times count from when it is due, even if the client is late to send it."""
        await asyncio.sleep(at_s - time.perf_counter())
        connection = await send(request, RequestRecord(sent_s=at_s, output_tokens=output_tokens), None)
        if connection is not None:
            connection.close()

    if load.request_rate is None:
        waiting = iter(requests)
        await asyncio.gather(*(client(waiting) for _ in range(load.concurrency)))
    else:
        times_s = arrivals_s(len(requests), load.request_rate, load.seed)
        start_s = time.perf_counter()
        arrivals = zip(times_s, requests, strict=True)
        await asyncio.gather(*(arrival(start_s + time_s, *request) for time_s, request in arrivals))
    return records


def _request(load: Load, api: BenchDialect, endpoint: Endpoint, wanted: WantedRequest) -> bytes:
    merged = {**api.body(wanted.prompt, wanted.output_tokens, load.model), **load.extra}
    body = msgspec.json.encode({key: value for key, value in merged.items() if value is not None})
    path = load.path or api.path
    return request_bytes(endpoint, path, body, headers=load.headers, keep_alive=load.keep_alive)


def summarize(load: Load, records: Sequence[RequestRecord], wall_s: float, client_cpu_s: float) -> Result:
    """Parse the recorded answers and reduce them to a Result."""
    ttft_s: list[float] = []
    itl_s: list[float] = []
    latency_s: list[float] = []
    short, models = 0, set[str]()
    counts: list[int] = []
    prompt_counts: list[int] = []
    failures: list[str] = []
    for record in records:
        try:
            if record.failure or record.reply.status != 200:
                raise ValueError(record.failure or _refusal(record.reply))
            generation = load.api.read(lines_of(record.reply.pieces()))
            times_s = sorted(set(generation.token_times_s))
            if not max(len(times_s), 1) <= generation.tokens <= record.output_tokens:
                raise ValueError(
                    f"{generation.tokens} tokens in {len(times_s)} pieces; expected at most {record.output_tokens}"
                )
        except (ValueError, LookupError) as exc:
            failures.append(str(exc))
            continue
        if times_s:
            ttft_s.append(times_s[0] - record.sent_s)
        itl_s += [later - earlier for earlier, later in itertools.pairwise(times_s)]
        latency_s.append(record.ended_s - record.sent_s)
        counts.append(generation.tokens)
        short += generation.tokens < record.output_tokens
        models.add(generation.model)
        if generation.prompt_tokens is not None:
            prompt_counts.append(generation.prompt_tokens)

    return Result(
        concurrency=load.concurrency if load.request_rate is None else None,
        request_rate=load.request_rate,
        requests=len(records),
        failed=len(failures),
        short=short,
        tokens=sum(counts),
        pieces=len(ttft_s) + len(itl_s),
        prompt_tokens=round(sum(prompt_counts) / len(prompt_counts), 1) if prompt_counts else None,
        wall_s=round(wall_s, 3),
        tokens_s=round(sum(counts) / wall_s, 1),
        requests_s=round(len(counts) / wall_s, 2),
        ttft_p50_ms=_milliseconds(ttft_s, 50),
        ttft_p90_ms=_milliseconds(ttft_s, 90),
        ttft_p99_ms=_milliseconds(ttft_s, 99),
        itl_p50_ms=_milliseconds(itl_s, 50),
        itl_p90_ms=_milliseconds(itl_s, 90),
        itl_p99_ms=_milliseconds(itl_s, 99),
        latency_p50_ms=_milliseconds(latency_s, 50),
        latency_p90_ms=_milliseconds(latency_s, 90),
        latency_p99_ms=_milliseconds(latency_s, 99),
        client_cpu_s=round(client_cpu_s, 3),
        first_failure=failures[0] if failures else "",
        answered_by=next(iter(models - {"", load.model}), "") if load.model else "",
    )


def _milliseconds(values_s: Sequence[float], percent: float) -> float | None:
    value_s = percentile(values_s, percent)
    return None if value_s is None else round(value_s * 1e3, 2)


def _refusal(reply: HttpReply) -> str:
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
        single = replace(
            load,
            concurrency=1,
            requests=1,
            prompt_words=words,
            output_tokens=1,
            request_rate=None,
            items=(),
            seed=f"words/{attempt}",
        )
        answer = run(single)
        if answer.failed:
            raise ValueError(f"{load.url}: {answer.first_failure}")
        if not answer.prompt_tokens:
            return prompt_tokens
        words = max(1, round(words * prompt_tokens / answer.prompt_tokens))
    return words
