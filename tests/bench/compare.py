"""Ours and the peers, measured in turn with the same prompts: one server at a time, rounds interleaved."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from djl_python.bench.command import default_requests
from djl_python.bench.cpu import cpu_seconds
from djl_python.bench.load import Load, run
from djl_python.bench.report import medians
from djl_python.bench.workload import prompts
from djl_python.testing import RunningServer, free_port, running_server
from tests.bench.peers import Peer
from tests.bench.perplexity import Texts, over_http
from tests.bench.process import started

OURS: Final = "djl-serving"
Result = dict[str, Any]
_STEPS: Final = ("djl_engine_step_seconds_sum", "djl_engine_step_seconds_count")


@dataclass(frozen=True)
class Plan:
    """What every system is asked.

    Attributes:
        model: the model directory; checkpoint: the directory of its weights.
        contexts: prompt lengths to measure one client at, beside `prompt_tokens`.
        texts: windows of token ids whose perplexity every system is asked for; without, weights are random.
    """

    model: Path
    checkpoint: Path
    concurrency: Sequence[int]
    prompt_tokens: int
    output_tokens: int
    contexts: Sequence[int]
    rounds: int
    start_timeout_s: float
    texts: Texts = field(default=(), repr=False)

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sequence among `concurrency` and `texts`; a tenth more for other ways to count them."""
        asked = self.prompt_tokens * 11 // 10 + self.output_tokens + 16
        return max(asked, *(len(ids) + 1 for ids in self.texts), 0)


@dataclass(frozen=True)
class System:
    """One server in one precision; `peer` is None for ours, which `options` (name, value) configure further."""

    precision: str
    peer: Peer | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.peer.name if self.peer else OURS} {self.precision}"

    @property
    def version(self) -> str:
        return self.peer.version if self.peer else ""

    def served_name(self, checkpoint: Path) -> str:
        """What requests call the model."""
        return self.peer.served_name(checkpoint) if self.peer else "bench"


def systems(precision: str, quantize: Sequence[str], peers: Sequence[Peer]) -> list[System]:
    """Ours as configured and quantized, and each peer in the precisions of those; ours between the peers."""
    order = []
    for wanted, mode in ((precision, ""), *((mode, mode) for mode in quantize)):
        able = [System(wanted, peer) for peer in peers if wanted in peer.precisions]
        order += [*able[:1], System(wanted, options=(("quantize", mode),) if mode else ()), *able[1:]]
    return order


def new_seed() -> str:
    """The seed of prompts that no request had before."""
    return secrets.token_hex(4)


class Words:
    """How many words make a prompt of so many tokens, by the checkpoint's own tokenizer."""

    def __init__(self, checkpoint: Path) -> None:
        self._tokens_per_word = 1.0
        if (checkpoint / "tokenizer.json").exists():
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
            self._tokens_per_word = len(tokenizer.encode(prompts(1, 2000, "words")[0]).ids) / 2000

    def for_tokens(self, tokens: int) -> int:
        """At least one."""
        return max(1, round(tokens / self._tokens_per_word))


def compare(plan: Plan, entered: Sequence[System], before_each: Callable[[], object]) -> tuple[list[Result], list[str]]:
    """Measure all systems, round by round; call `before_each` while none of them is running.

    Returns:
        A result for each system, and what went wrong: a system that fails to start or to answer is left out after, and
        so is one that does not tell its perplexity, before its speed is known.
    """
    words, seed = Words(plan.checkpoint), new_seed()
    rows: dict[str, dict[int, list[dict[str, Any]]]] = {system.name: {} for system in entered}
    contexts: dict[str, dict[int, list[dict[str, Any]]]] = {system.name: {} for system in entered}
    ready_s: dict[str, list[float]] = {system.name: [] for system in entered}
    perplexities: dict[str, float] = {}
    failures: dict[str, str] = {}
    turns = deque(entered)
    for number in range(plan.rounds):
        for system in turns:
            if system.name in failures:
                continue
            before_each()
            _say(f"round {number + 1} of {plan.rounds}: {system.name}")
            try:
                began_s = time.monotonic()
                with served(plan, system, max(plan.concurrency), plan.max_tokens) as server:
                    ready_s[system.name].append(round(time.monotonic() - began_s, 1))
                    if plan.texts and system.name not in perplexities:
                        perplexities[system.name] = _perplexity(plan, system, server)
                        _say(f"perplexity {perplexities[system.name]:.4f}")
                    load = _load(plan, system, server, words.for_tokens(plan.prompt_tokens))
                    for concurrency in plan.concurrency:
                        at = replace(load, concurrency=concurrency, requests=default_requests(concurrency))
                        row = _measured(system, server, replace(at, seed=f"{seed}/{number}/{concurrency}"))
                        rows[system.name].setdefault(concurrency, []).append(row)
                if plan.contexts:
                    with served(plan, system, 1, max(plan.contexts) * 11 // 10 + plan.output_tokens + 16) as server:
                        for context in plan.contexts:
                            at = _load(plan, system, server, words.for_tokens(context))
                            at = replace(at, requests=3, seed=f"{seed}/{number}/context/{context}")
                            row = {"context": context, **_measured(system, server, at)}
                            contexts[system.name].setdefault(context, []).append(row)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                failures[system.name] = str(error)
                _say(f"{system.name} is out: {error}")
        turns.rotate(-1)  # nobody is always the first on a cool machine
    results: list[Result] = [
        {
            "name": system.name,
            "ours": system.peer is None,
            "precision": system.precision,
            "version": system.version,
            "ready_s": ready_s[system.name],
            "perplexity": perplexities.get(system.name),
            "rows": [medians(of_one) for of_one in rows[system.name].values()],
            "contexts": [medians(of_one) for of_one in contexts[system.name].values()],
            "rounds": [one for of_one in rows[system.name].values() for one in of_one],
        }
        for system in entered
    ]
    wrong = [f"{name}: {error}" for name, error in failures.items()]
    wrong += [
        f"{result['name']}, {row['concurrency']} clients: {row['failed']} failed: {row['first_failure']}"
        for result in results
        for row in (*result["rows"], *result["contexts"])
        if row["failed"]
    ]
    return results, wrong


@contextlib.contextmanager
def served(plan: Plan, system: System, sequences: int, max_tokens: int) -> Iterator[RunningServer]:
    """The system's server, ready, with room for `sequences` of `max_tokens` tokens each.

    Raises:
        RuntimeError: it does not start.
        subprocess.CalledProcessError: its checkpoint can't be converted.
    """
    if system.peer is None:
        environment = {f"OPTION_{name.upper()}": value for name, value in system.options}
        arguments = ("-m", f"bench={plan.model}", "--log-level", "warning")
        with running_server(*arguments, environment=environment, start_timeout_s=plan.start_timeout_s) as server:
            yield server
        return
    port = free_port()
    launch = system.peer.launch(plan.checkpoint, system.precision, port, sequences, max_tokens)
    with started(launch, port, plan.start_timeout_s) as server:
        yield server


def _perplexity(plan: Plan, system: System, server: RunningServer) -> float:
    if system.peer is not None:
        return system.peer.perplexity(server.url, plan.checkpoint, system.precision, plan.texts)
    return over_http(server.url, system.served_name(plan.checkpoint), plan.texts)


def _load(plan: Plan, system: System, server: RunningServer, words: int) -> Load:
    peer = system.peer
    return Load(
        server.url,
        concurrency=1,
        requests=1,
        prompt_words=words,
        output_tokens=plan.output_tokens,
        dialect=peer.dialect if peer else "openai",
        model=system.served_name(plan.checkpoint),
        extra=peer.extra if peer else {},
    )


def _measured(system: System, server: RunningServer, load: Load) -> dict[str, Any]:
    """One warmed-up run; of ours also what its processes took, and its engine's steps."""
    run(replace(load, requests=load.concurrency, seed=f"{load.seed}/warm"))
    if system.peer is not None:
        return msgspec.structs.asdict(run(load))
    before, cpu_before = steps(server.url), cpu_seconds(server.process.pid)
    row = msgspec.structs.asdict(run(load))
    after, cpu_after = steps(server.url), cpu_seconds(server.process.pid)
    row["step_s"], row["steps"] = (round(end - begin, 4) for begin, end in zip(before, after, strict=True))
    for role in ("server", "worker", "engine"):
        row[f"{role}_cpu_s"] = round(cpu_after.get(role, 0.0) - cpu_before.get(role, 0.0), 3)
    return row


def steps(url: str) -> tuple[float, ...]:
    """(seconds, number) of all steps of the engine so far, as /metrics tells; zeros before the first."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        return step_totals(response.read().decode())


def step_totals(metrics: str) -> tuple[float, ...]:
    """The same, from the text of /metrics."""
    lines = metrics.splitlines()
    return tuple(
        sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{"))) for name in _STEPS
    )


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
