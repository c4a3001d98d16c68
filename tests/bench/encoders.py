"""Texts per second of embedders: the engine beside ONNX Runtime and OpenVINO as sentence-transformers runs them.

    python -m tests.bench.encoders --install    sentence-transformers[onnx,openvino], in an environment of its own
    python -m tests.bench.encoders              MiniLM, and random weights of BERT-base's shape: some ten minutes
    python -m tests.bench.encoders --checkpoints minilm --precisions fp32 --tokens 32 --clients 1 --rounds 1

Without that environment, the engine's native kernels are compared with torch alone. `make bench` has this as its
section `encoders`.

Each system is a process, which is given the same texts: one, or 32 at once. Systems are measured in turn, round by
round, one at work at a time, and numbers are medians. The first round of a shape warms up; a shape whose rounds have
taken `--shape-seconds` has no further one. The quality of trained weights (all-MiniLM-L6-v2) is the rank correlation
(Spearman's) of all pairs' cosines with those of torch in fp32.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import transformers

from djl_python.bench.report import table
from tests.bench import encoder_process
from tests.bench.peers import DEFAULT_HOME, TORCH, run
from tests.real import minilm
from tests.real.fetch import UnavailableError

TOKENS: Final = (32, 256)
CLIENTS: Final = (1, 32)
CHECKPOINTS: Final = ("minilm", "bert-base")
FORMATS: Final = ("fp32", "bf16", "int8")
SHAPE_S: Final = 100.0
OURS: Final = "djl-serving"
#: The name of its environment, below the folder of the peers.
_NAME: Final = "sentence-transformers"
#: What each system computes in; "torch" is the engine without its kernels.
PRECISIONS: Final = {
    OURS: ("torch", "fp32", "bf16", "int8"),
    "onnx": ("fp32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
}
_TEXT: Final = Path(minilm.__file__).with_name("texts") / "english.txt"
_SENTENCES: Final = 48


class Running:
    """A system's process, ready to be given texts."""

    def __init__(
        self, stack: ExitStack, python: str, system: str, precision: str, checkpoint: Path, folder: Path
    ) -> None:
        self.system, self.precision = system, precision
        command = [python, "-m", "tests.bench.encoder_process", system, precision, str(checkpoint), str(folder)]
        if system != OURS:
            command = [python, encoder_process.__file__, *command[3:]]
        self._process = stack.enter_context(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )
        )
        stack.callback(self._process.kill)
        self.seconds: dict[tuple[int, int], list[float]] = {}
        self._read()

    @property
    def name(self) -> str:
        return f"{self.system} {self.precision}"

    def embed(self, given: Sequence[str]) -> tuple[float, npt.NDArray[np.float64]]:
        """Seconds, and the vectors."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(given)) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._read())
        return answer["seconds"], np.array(answer["vectors"])

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"{self.name} ended with status {self._process.wait()}")
        return line


def install(home: Path) -> None:
    """Make the peers' environment anew. Raises CalledProcessError."""
    folder = home / _NAME
    run(sys.executable, "-m", "venv", "--clear", folder)
    constraint = folder / "constraints.txt"
    constraint.write_text(TORCH + "\n", encoding="utf-8")
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", "-c", constraint, f"{_NAME}[onnx,openvino]")


def peer_python(home: Path) -> str | None:
    """The Python of the peers' environment; None: it is not installed."""
    path = home / _NAME / "bin" / "python"
    return str(path) if path.exists() else None


@dataclass(frozen=True)
class Plan:
    """The shapes to measure, and for how long.

    Attributes:
        checkpoints: of `CHECKPOINTS`.
        precisions: of `FORMATS`, beside torch alone, which all are compared with.
        tokens: of a text.
        clients: how many texts come at once.
        rounds: that count.
        shape_s: a shape has no further round after so many seconds.
    """

    checkpoints: Sequence[str] = CHECKPOINTS
    precisions: Sequence[str] = FORMATS
    tokens: Sequence[int] = TOKENS
    clients: Sequence[int] = CLIENTS
    rounds: int = 5
    shape_s: float = SHAPE_S

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(tokens of a text, clients)."""
        return list(itertools.product(self.tokens, self.clients))


def measure(plan: Plan, home: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of a table for each checkpoint.

    Args:
        home: the folder of the peers, which keeps what they convert.

    Raises:
        OSError: a system's process ended.
        UnavailableError: MiniLM, whose tokenizer both checkpoints have, can't be fetched.
    """
    trained = minilm.fetch()
    tables: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as made:
        if "minilm" in plan.checkpoints:
            tables[trained.name] = _measured(trained, plan, home, trained=True)
        if "bert-base" in plan.checkpoints:
            shape = write_bert_base(Path(made) / "bert-base-shape", trained)
            tables[shape.name] = _measured(shape, plan, home, trained=False)
    return tables


def _measured(checkpoint: Path, plan: Plan, home: Path, *, trained: bool) -> list[dict[str, Any]]:
    python = peer_python(home)
    pythons = {OURS: sys.executable} | ({} if python is None else {"onnx": python, "openvino": python})
    converted = home / _NAME / "converted"
    sentences = _sentences()
    with ExitStack() as stack:
        systems = [
            Running(stack, python, system, precision, checkpoint, converted / system)
            for system, python in pythons.items()
            for precision in PRECISIONS[system]
            if precision in ("torch", *plan.precisions)
        ]
        exact = _similarities(systems[0].embed(sentences)[1])
        qualities = [_rank_correlation(_similarities(each.embed(sentences)[1]), exact) for each in systems]
        for shape in plan.shapes:
            _measure_shape(systems, shape, plan)
        rows: list[dict[str, Any]] = []
        for system, quality in zip(systems, qualities, strict=True):
            speeds = {
                f"{tokens} tokens, {clients}": clients / statistics.median(system.seconds[tokens, clients])
                for tokens, clients in plan.shapes
            }
            rows.append({"system": system.name, "quality": f"{quality:.4f}" if trained else None, **speeds})
    return rows + _ratios(rows)


def _measure_shape(systems: Sequence[Running], shape: tuple[int, int], plan: Plan) -> None:
    tokens, clients = shape
    ends_s = time.monotonic() + plan.shape_s
    for turn in range(plan.rounds + 1):
        given = [_text(tokens, turn * clients + index) for index in range(clients)]
        for system in systems:
            seconds, _ = system.embed(given)
            system.seconds.setdefault(shape, []).append(seconds)
        if turn and time.monotonic() > ends_s:
            break
    for system in systems:
        del system.seconds[shape][0]


def _ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our speed to the best peer's, in each precision."""
    ratios = []
    for precision in FORMATS:
        named = {row["system"]: row for row in rows}
        peers = [row for name, row in named.items() if name.endswith(precision) and not name.startswith(OURS)]
        if peers and f"{OURS} {precision}" in named:
            ours = named[f"{OURS} {precision}"]
            speeds = [key for key in ours if key not in ("system", "quality")]
            best = {key: ours[key] / max(peer[key] for peer in peers) for key in speeds}
            ratios.append({"system": f"{OURS} {precision} / best peer", "quality": None, **best})
    return ratios


def report(result: dict[str, list[dict[str, Any]]]) -> str:
    """Tables of texts per second."""
    parts = []
    for checkpoint, rows in result.items():
        columns = {key: _heading(key) for key in rows[0]}
        parts += [f"Texts per second, {checkpoint}:", table(rows, columns)]
    return "\n\n".join(parts)


def _heading(key: str) -> str:
    if key.endswith(", 1"):
        return f"{key} client"
    return f"{key} clients" if key[-1].isdigit() else key


def write_bert_base(path: Path, tokenizer_of: Path) -> Path:
    """A checkpoint of BERT-base's shape with random weights, and a trained model's tokenizer."""
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig()).save_pretrained(path)
    for file in tokenizer_of.glob("*token*.json"):
        shutil.copy(file, path)
    for name in ("vocab.txt", "modules.json"):
        shutil.copy(tokenizer_of / name, path)
    shutil.copytree(tokenizer_of / "1_Pooling", path / "1_Pooling", dirs_exist_ok=True)
    pooling = path / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), "word_embedding_dimension": 768}))
    (path / "2_Normalize").mkdir(exist_ok=True)
    return path


def _text(tokens: int, number: int) -> str:
    """A text of so many tokens of BERT, special ones included; another for each number."""
    words = ("house", "tree", "river", "stone", "green", "small", "today", "people", "water", "north", "seven")
    return " ".join(words[(number * 7 + index * index) % len(words)] for index in range(tokens - 2))


def _sentences() -> list[str]:
    split = (part.strip() for part in _TEXT.read_text(encoding="utf-8").replace("\n", " ").split("."))
    return [part for part in split if 20 < len(part) < 200][:_SENTENCES]


def _similarities(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    cosines: npt.NDArray[np.float64] = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    return cosines


def _rank_correlation(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    return float(np.corrcoef(one.argsort().argsort(), other.argsort().argsort())[0, 1])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install what the engine is compared with, and end")
    parser.add_argument("--peers-dir", type=Path, default=DEFAULT_HOME, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians count (default 5)")
    parser.add_argument("--checkpoints", nargs="+", choices=CHECKPOINTS, default=CHECKPOINTS)
    parser.add_argument("--precisions", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS, help="of a text (default 32 256)")
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS, help="texts at once (default 1 32)")
    parser.add_argument("--shape-seconds", type=float, default=SHAPE_S, metavar="S", help="(default 100)")
    options = parser.parse_args()
    home = options.peers_dir.expanduser().resolve()
    if options.install:
        install(home)
        return
    plan = Plan(
        checkpoints=options.checkpoints,
        precisions=options.precisions,
        tokens=options.tokens,
        clients=options.clients,
        rounds=options.rounds,
        shape_s=options.shape_seconds,
    )
    try:
        print(report(measure(plan, home)))
    except (OSError, UnavailableError) as reason:
        sys.exit(f"encoders: {reason}")


if __name__ == "__main__":
    main()
