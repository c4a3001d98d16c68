"""What serving itself costs: tokens through HTTP from engines that compute nothing, and requests to an idle handler."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from djl_python.bench.cpu import cpu_seconds
from djl_python.bench.dialects import BenchGeneration
from djl_python.bench.http import Read
from djl_python.bench.load import Load, run
from djl_python.bench.report import medians
from djl_python.testing import FAKE_ENGINE, RunningServer, free_port, running_server, write_byte_tokenizer
from tests.bench.peers import Peer
from tests.bench.process import started

STREAMS: Final = 64
CLIENTS: Final = 32
#: A step this long gives STREAMS / 3 ms = 21,333 tokens/s at most: each token comes alone, as a fast model's would.
STEP_MS: Final = 3
#: name -> settings of a model whose engine repeats its prompt: as fast as it goes, and a step at a time.
ENGINES: Final[Mapping[str, str]] = {
    "echo": "option.rolling_batch=echo\n",
    f"echo, a step every {STEP_MS} ms": f"option.rolling_batch={FAKE_ENGINE}\noption.fake_step_ms={STEP_MS}\n",
}
HANDLER: Final = """\
from djl_python import Input, Output


def handle(inputs: Input) -> Output | None:
    if inputs.is_empty():
        return None
    return Output().add_as_json({"output": inputs.get_as_json()["input"]})
"""


@dataclasses.dataclass(frozen=True)
class Number:
    """A number sent and given back, as JSON in one piece: a "dialect" whose answer is one token."""

    path: str

    def body(self, prompt: str, output_tokens: int, model: str) -> dict[str, Any]:
        return {"input": len(prompt)}

    def read(self, lines: Iterable[Read]) -> BenchGeneration:
        ((time_s, line),) = lines
        return BenchGeneration([time_s], 1, None, str(msgspec.json.decode(line)["output"]))


def measure(rounds: int, litserve: Peer | None) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Run all of it.

    Returns:
        `streams`, a row for each engine and dialect, and `requests`, ours and LitServe's where it is installed; and
        what went wrong.
    """
    tables = {"streams": _streams(rounds), "requests": requests_of(rounds, litserve)}
    failures = [
        f"{row.get('name') or row['engine']}: {row['failed']} of {row['requests']} failed: {row['first_failure']}"
        for rows in tables.values()
        for row in rows
        if row["failed"]
    ]
    return tables, failures


def _streams(rounds: int) -> list[dict[str, Any]]:
    rows = []
    for engine, settings in ENGINES.items():
        with tempfile.TemporaryDirectory() as folder, _model(Path(folder), settings) as server:
            for dialect in ("lmi", "openai"):
                load = Load(server.url, STREAMS, STREAMS, 40, output_tokens=256, dialect=dialect, model="bench")
                run(load)
                row = _rounds(load, 4 * STREAMS, rounds, server, {"engine": engine, "dialect": dialect})
                rows.append({**row, "tokens_per_piece": round(row["tokens"] / max(1, row["pieces"]), 2)})
    return rows


def _rounds(load: Load, requests: int, rounds: int, server: RunningServer, names: Mapping[str, str]) -> dict[str, Any]:
    """Medians of `rounds` runs, with the CPU seconds that the server took for all of them."""
    before = sum(cpu_seconds(server.process.pid).values())
    runs = [
        {
            **names,
            **msgspec.structs.asdict(run(dataclasses.replace(load, requests=requests, seed=secrets.token_hex(4)))),
        }
        for _ in range(rounds)
    ]
    cpu_s = sum(cpu_seconds(server.process.pid).values()) - before
    row = {**medians(runs), "server_cpu_s": round(cpu_s, 3)}
    print(f"  {', '.join(names.values())}: {row['tokens_s']} a second", file=sys.stderr, flush=True)
    return row


@contextlib.contextmanager
def _model(folder: Path, settings: str) -> Iterator[RunningServer]:
    write_byte_tokenizer(folder)
    text = f"option.model_id={folder}\noption.max_rolling_batch_size={STREAMS}\n{settings}"
    (folder / "serving.properties").write_text(text, encoding="utf-8")
    with running_server("-m", f"bench={folder}", "--log-level", "warning") as server:
        yield server


@contextlib.contextmanager
def _handler() -> Iterator[RunningServer]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.py").write_text(HANDLER, encoding="utf-8")
        with running_server("-m", f"nothing={folder}", "--log-level", "warning") as server:
            yield server


def requests_of(rounds: int, litserve: Peer | None) -> list[dict[str, Any]]:
    """Interleaved like everything: one server at a time, a round each."""
    by_system: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        with _handler() as server:
            load = Load(server.url, CLIENTS, CLIENTS * 100, 1, 1, Number("/predictions/nothing"), keep_alive=True)
            by_system.setdefault("djl-serving", []).append(_requests_row(load, server, "djl-serving"))
        if litserve is not None:
            port = free_port()
            with started(litserve.launch(Path(), "", port, 1, 1), port, 60.0) as server:
                load = Load(server.url, CLIENTS, CLIENTS * 100, 1, 1, Number("/predict"), keep_alive=True)
                by_system.setdefault(litserve.name, []).append(_requests_row(load, server, litserve.name))
    return [medians(rows) for rows in by_system.values()]


def _requests_row(load: Load, server: RunningServer, name: str) -> dict[str, Any]:
    run(dataclasses.replace(load, requests=CLIENTS))
    return _rounds(load, load.requests, 1, server, {"name": name})
