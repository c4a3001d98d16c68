"""What rounding weights costs: how far next-token distributions move. In a process of its own, in the engine alone.

    python -m tests.bench.quality MODEL --quantize int8,int4

Prints one JSON object: for each mode the mean Kullback-Leibler divergence, in nats a token, of the quantized model's
distribution from that of the same model as configured, and how often both find the same token likeliest. The text is
this project's README.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch import Tensor

    from djl_python.engine.runner.model_runner import ModelRunner

ROOT: Final = Path(__file__).resolve().parents[2]
TOKENS: Final = 512


def measure(checkpoint: Path, dtype: str, modes: Sequence[str]) -> dict[str, dict[str, float]]:
    """mode -> {"mean_kl", "same_token"}. Raises CalledProcessError: a mode is not there, or does not load."""
    command = [sys.executable, "-m", "tests.bench.quality", str(checkpoint), "--dtype", dtype]
    ended = subprocess.run(
        [*command, "--quantize", ",".join(modes)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    divergences: dict[str, dict[str, float]] = json.loads(ended.stdout)
    return divergences


def prompt_logits(checkpoint: Path, dtype: str, quantize: str | None) -> Tensor:
    """(positions, vocabulary), fp32: the logits of every position of the text, as the engine computes them."""
    import torch
    from transformers import AutoTokenizer

    from djl_python.core.sequence_request import SequenceRequest
    from djl_python.core.types import SamplingParams
    from djl_python.engine.builtin.paged_batch import PagedRollingBatch
    from djl_python.engine.settings import BuiltInSettings

    settings: dict[str, Any] = {"model_path": str(checkpoint), "dtype": dtype, "max_batch_size": 1}
    if quantize is not None:
        settings["quantize"] = quantize
    batch = PagedRollingBatch(BuiltInSettings(**settings), lambda what, done, total: None)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ids = tokenizer(text, truncation=True, max_length=TOKENS)["input_ids"]
    runner = _Kept(batch.runner)
    batch.runner = runner
    batch.add(SequenceRequest(ids, SamplingParams(max_new_tokens=1, prompt_logprobs=0, ignore_eos=True), id=0))
    while not batch.idle:
        batch.step()
    batch.close()
    return torch.cat(runner.logits)[: len(ids)]


class _Kept:
    """A runner that keeps the logits it gives."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.logits: list[Tensor] = []

    def run(self, chunks: Any) -> Tensor:
        logits: Tensor = self._runner.run(chunks)
        self.logits.append(logits.float().clone())
        return logits

    def forget(self, sequence: Any) -> None:
        self._runner.forget(sequence)

    def operator_seconds(self) -> dict[str, float]:
        return self._runner.operator_seconds()


def divergence(of: Tensor, from_: Tensor) -> dict[str, float]:
    """Mean KL(from_ || of) in nats over the rows of two (positions, vocabulary) of logits."""
    true, estimate = from_.log_softmax(-1), of.log_softmax(-1)
    kl = (true.exp() * (true - estimate)).sum(-1).mean()
    same = (true.argmax(-1) == estimate.argmax(-1)).float().mean()
    return {"mean_kl": round(float(kl), 6), "same_token": round(float(same), 4)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.quality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize", required=True, help="modes, separated by commas")
    arguments = parser.parse_args()
    exact = prompt_logits(arguments.checkpoint, arguments.dtype, None)
    modes = arguments.quantize.split(",")
    print(
        json.dumps(
            {mode: divergence(prompt_logits(arguments.checkpoint, arguments.dtype, mode), exact) for mode in modes}
        )
    )


if __name__ == "__main__":
    main()
