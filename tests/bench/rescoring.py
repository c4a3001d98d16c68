"""What a step saves by sampling tokens from a few exact logits (DECISIONS 71), on the native kernels of this machine.

    python -m tests.bench.rescoring                                  SmolLM2-135M-Instruct in bf16 and int8
    python -m tests.bench.rescoring --model OUT/llama32-1b           a checkpoint that tests.bench.make_models makes

Opens the model twice in this process, with rescoring and without, and lets both generate the same in turn. Prints the
median milliseconds of a decode step of either, over all rounds, and what is saved. Steps with a prompt are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import msgspec

from djl_python.bench.arguments import counts
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.native.program.builders.rescoring import build_rescoring
from djl_python.engine.settings import BuiltInSettings
from djl_python.text.tokens.tokenizer import Tokenizer
from tests.real import fetch

ROOT: Final = Path(__file__).resolve().parents[2]
_BUILDER: Final = "djl_python.engine.native.program.builders.decoder.build_rescoring"
_WARM_UP_STEPS: Final = 4
#: How tokens are chosen, and what is told of them: settings of `SamplingParams`.
_CHOICES: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"logprobs": False},
    "greedy, log-probabilities": {},
    "drawn with top_p": {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "seed": 7, "logprobs": False},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 if no mode of the model has rescoring."""
    options = _parser().parse_args(argv)
    model = (options.model or fetch.fetch()).resolve()
    rows = [row for mode in options.quantize.split(",") for row in _measured(model, mode, options)]
    print(f"{model.name}: median ms of a decode step, {options.rounds} rounds of {options.output_tokens} tokens")
    print(f"{'weights':<8} {'tokens':<26} sequences  without     with   saved")
    for mode, choice, sequences, without, with_it in rows:
        saved = 100 * (1 - with_it / without)
        print(f"{mode:<8} {choice:<26} {sequences:>9} {without:>8.3f} {with_it:>8.3f} {saved:>6.1f}%")
    return 0 if rows else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint directory (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--quantize", default="none,int8", help="of none,int8,int4 (default none,int8)")
    parser.add_argument("--concurrency", type=counts, default=[1, 8, 32], metavar="N,...")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9, help="of each, in turn (default 9)")
    parser.add_argument("--threads", type=int, default=0, help="of the engine (default: as many as there are cores)")
    return parser


def _measured(model: Path, mode: str, options: argparse.Namespace) -> list[tuple[str, str, int, float, float]]:
    """(weights, how tokens are chosen, sequences, ms without rescoring, ms with it) of each case."""
    with_it, has_rescoring = _opened(model, mode, options, rescores=True)
    if not has_rescoring:
        print(f"{model.name} {mode}: its head is not rescored, so nothing is saved", file=sys.stderr)
        with_it.close()
        return []
    without, _ = _opened(model, mode, options, rescores=False)
    ids = Tokenizer.load(model).encode((ROOT / "CHANGELOG.md").read_text("utf-8"))
    rows = []
    for choice, settings in _CHOICES.items():
        sampling = SamplingParams(max_new_tokens=options.output_tokens, ignore_eos=True, **settings)
        for sequences in options.concurrency:
            times: dict[bool, list[float]] = {False: [], True: []}
            for round_ in range(options.rounds):
                prompts = [ids[first : first + options.prompt_tokens] for first in range(sequences)]
                for rescores in (False, True) if round_ % 2 else (True, False):
                    batch = with_it if rescores else without
                    times[rescores] += _decode_steps(batch, prompts, sampling)
            row = mode, choice, sequences, statistics.median(times[False]), statistics.median(times[True])
            rows.append(row)
            print(f"  {row}", file=sys.stderr)
    for batch in (with_it, without):
        batch.close()
    return rows


def _opened(model: Path, mode: str, options: argparse.Namespace, *, rescores: bool) -> tuple[PagedRollingBatch, bool]:
    """(the engine, whether its head is rescored)"""
    sizes: list[int] = []

    def build(*args: Any) -> list[Any]:
        operations = build_rescoring(*args) if rescores else []
        sizes.append(len(operations))
        return operations

    common = BuiltInSettings(
        model_path=str(model),
        kernels="native",
        dtype="bf16",
        max_batch_size=max(options.concurrency),
        max_model_len=options.prompt_tokens + options.output_tokens + 16,
        threads=options.threads or None,
    )
    settings = msgspec.structs.replace(common, quantize=mode)
    with patch(_BUILDER, build):
        batch = PagedRollingBatch(settings, lambda *report: None)
    return batch, any(sizes)


def _decode_steps(batch: PagedRollingBatch, prompts: Sequence[list[int]], sampling: SamplingParams) -> list[float]:
    """Milliseconds of each step in which all sequences decode."""
    for number, prompt in enumerate(prompts):
        batch.add(SequenceRequest(prompt, sampling, id=number))
    times = []
    while not batch.idle:
        begin = time.perf_counter()
        events = batch.step()
        took = time.perf_counter() - begin
        if len(events) == len(prompts):
            times.append(1e3 * took)
    return times[_WARM_UP_STEPS:]


if __name__ == "__main__":
    sys.exit(main())
