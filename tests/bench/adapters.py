"""What LoRA adapters cost: decode steps with adapters beside the same without, in a process of its own.

    python -m tests.bench.adapters                                   SmolLM2-135M-Instruct in bf16, int8 and int4
    python -m tests.bench.adapters MODEL --quantize none --cases 64x16
    python -m tests.bench.adapters --quantize none --rounds 1 --steps 4 --prompt-tokens 32    to see that it runs

A case is so many sequences with so many adapters in turn: random numbers of rank 16 for every linear of the layers.
The same is generated in turn by an engine that has no adapters (`plain`), and by one that has them: without any in the
batch (`base`), and with them (`adapted`). Each figure is the tokens a second of the median of the steps in which all
sequences decode; `unused` is what adapters leave of `plain` that nobody asks for, `share` what is left of `base` with
them. The command, the weights and the rows go to standard error as they are measured, and a JSON array of the rows to
standard output.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.real import fetch

if TYPE_CHECKING:
    from djl_python.engine.builtin.paged_batch import PagedRollingBatch

ROOT: Final = Path(__file__).resolve().parents[2]
RANK: Final = 16
_WARM_UP_STEPS: Final = 4
_ROOM: Final = 200  # tokens that a sequence may have before all decode
_CACHE_MB: Final = 512  # of each engine: memory that is free decides nothing
_SCALE: Final = 0.02  # of the numbers of adapters


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; prints the rows."""
    options = _parser().parse_args(argv)
    model = (options.model or fetch.fetch()).resolve()
    _say(f"python -m tests.bench.adapters {shlex.join(sys.argv[1:] if argv is None else argv)}")
    _say(f"{model.name}: {options.rounds} rounds of {options.steps} steps after {options.prompt_tokens} tokens")
    with tempfile.TemporaryDirectory() as directory:
        rows = [row for mode in options.quantize.split(",") for row in _measured(model, mode, options, Path(directory))]
    print(json.dumps(rows))
    return 0


def measure(checkpoint: Path, modes: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a checkpoint as it is and in these modes. Raises CalledProcessError: a mode does not load."""
    command = [sys.executable, "-m", "tests.bench.adapters", str(checkpoint), "--quantize", ",".join(["none", *modes])]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True)
    rows: list[dict[str, Any]] = json.loads(ended.stdout)
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="checkpoint directory (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--quantize", default="none,int8,int4", help="of none,int8,int4 (default: all)")
    parser.add_argument("--cases", type=_cases, default=[(1, 1), (32, 8)], metavar="SEQUENCESxADAPTERS,...")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="and one more (default 128, whole blocks)")
    parser.add_argument("--steps", type=int, default=48, help="of each round (default 48)")
    parser.add_argument("--rounds", type=int, default=5, help="of each, in turn (default 5)")
    parser.add_argument("--threads", type=int, default=0, help="of the engine (default: as many as there are cores)")
    return parser


def _cases(text: str) -> list[tuple[int, int]]:
    """(sequences, adapters) of each case."""
    try:
        pairs = [tuple(map(int, case.split("x"))) for case in text.split(",")]
        return [(sequences, adapters) for sequences, adapters in pairs]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} has not the form 1x1,32x8") from None


def _measured(model: Path, mode: str, options: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    from djl_python.text.tokens.tokenizer import Tokenizer

    ids = Tokenizer.load(model).encode((ROOT / "CHANGELOG.md").read_text("utf-8"))
    plain, batch = (_opened(model, mode, options, directory, adapters) for adapters in (False, True))
    _say(f"{mode}: {batch.description}")
    rows = []
    for sequences, adapters in options.cases:
        prompts = [ids[first : first + options.prompt_tokens + 1] for first in range(sequences)]
        runs = {"plain": (plain, 0), "base": (batch, 0), "adapted": (batch, adapters)}
        seconds: dict[str, list[float]] = {each: [] for each in runs}
        operators: dict[str, dict[str, float]] = {each: {} for each in runs}
        for round_ in range(options.rounds):
            for each in list(runs)[:: -1 if round_ % 2 else 1]:
                engine, count = runs[each]
                times, operators[each] = _decode_steps(engine, prompts, count, options.steps)
                seconds[each] += times
        rates = {each: sequences / statistics.median(times) for each, times in seconds.items()}
        rows.append(
            {"weights": mode, "sequences": sequences, "adapters": adapters, **rates,
             "unused": rates["base"] / rates["plain"], "share": rates["adapted"] / rates["base"]}
        )  # fmt: skip
        steps = {each: f"{1000 * statistics.median(times):.2f} ms of {len(times)}" for each, times in seconds.items()}
        _say(f"  {sequences} sequences, {adapters} adapters; median steps: {steps}")
        for each, spent in operators.items():
            _say(f"    {each}, ms of operations in a step: {spent}")
        _say(f"  {rows[-1]}")
    for engine in (plain, batch):
        engine.close()
    return rows


def _opened(
    model: Path, mode: str, options: argparse.Namespace, directory: Path, has_adapters: bool
) -> PagedRollingBatch:
    """The engine; with as many adapters as a case needs, which are made in `directory` if they aren't there."""
    from djl_python.engine.builtin.paged_batch import PagedRollingBatch
    from djl_python.engine.settings import BuiltInSettings

    settings: dict[str, Any] = {} if mode == "none" else {"quantize": mode}
    if has_adapters:
        most = max(adapters for _, adapters in options.cases)
        paths = {str(number): directory / str(number) for number in range(most)}
        if not directory.joinpath("0").exists():
            _write_adapters(model, paths)
        settings |= {
            "enable_lora": True,
            "max_loras": most,
            "max_lora_rank": RANK,
            "adapters": {name: str(path) for name, path in paths.items()},
        }
    return PagedRollingBatch(
        BuiltInSettings(
            model_path=str(model),
            kernels="native",
            max_batch_size=max(sequences for sequences, _ in options.cases),
            max_model_len=options.prompt_tokens + options.steps + _ROOM + 2,
            kv_cache_memory_mb=_CACHE_MB,
            threads=options.threads or None,
            **settings,
        ),
        lambda *report: None,
    )


def _write_adapters(model: Path, paths: Mapping[str, Path]) -> None:
    """Adapters of random numbers for every linear but the head, as peft saves them."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    from djl_python.engine.adapters.targets import adapter_targets

    with torch.device("meta"):
        targets = adapter_targets(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)))
    linears = {name: each for name, each in targets.items() if not each.embedding and name != "lm_head"}
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": sorted(linears)}
    for number, path in enumerate(paths.values()):
        random = torch.Generator().manual_seed(number)
        shapes = {
            f"base_model.model.{name}.{part}.weight": shape
            for name, each in linears.items()
            for part, shape in (("lora_A", (RANK, each.inputs)), ("lora_B", (each.outputs, RANK)))
        }
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps(config))
        tensors = {name: _SCALE * torch.randn(shape, generator=random) for name, shape in shapes.items()}
        save_file(tensors, path / "adapter_model.safetensors")


def _decode_steps(
    batch: PagedRollingBatch, prompts: list[list[int]], adapters: int, steps: int
) -> tuple[list[float], dict[str, float]]:
    """Time so many steps in which all sequences decode, with so many adapters in turn (0: none).

    Returns:
        The seconds of each, and milliseconds a step by kind of operation, as far as the engine says them.
    """
    from djl_python.core.sequence_request import SequenceRequest
    from djl_python.core.types import SamplingParams

    # Prompts are read before, so that all sequences begin to decode within a few steps: their last token alone is left.
    for new_tokens in (1, _ROOM + steps):
        while not batch.idle:
            batch.step()
        sampling = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True, logprobs=False)
        for number, prompt in enumerate(prompts):
            name = str(number % adapters) if adapters else ""
            batch.add(SequenceRequest(prompt, sampling, id=number, adapter=name))
    times: list[float] = []
    spent: list[dict[str, float]] = []
    while len(times) < _WARM_UP_STEPS + steps:
        before = batch.runner.operator_seconds()
        begin = time.perf_counter()
        events = batch.step()
        took = time.perf_counter() - begin
        if faults := [event.error or event.finish for event in events if event.error or event.finish]:
            raise RuntimeError(f"a sequence ended before all {len(prompts)} had decoded together: {faults[0]}")
        if len(events) == len(prompts):
            times.append(took)
            spent.append({kind: s - before[kind] for kind, s in batch.runner.operator_seconds().items()})
    for number in range(len(prompts)):
        batch.cancel(number)
    medians = {kind: statistics.median(each[kind] for each in spent[_WARM_UP_STEPS:]) for kind in spent[0]}
    return times[_WARM_UP_STEPS:], {kind: round(1000 * s, 3) for kind, s in medians.items() if s}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
