"""What `make bench` runs: this server and the peers that are installed, measured in turn on the same checkpoint.

    make bench                                        SmolLM2-135M-Instruct in bf16, int8 and int4, and all peers
    make bench ARGS="--model /models/qwen2-0.5b"      another model, and every peer that is installed
    make bench ARGS="--model /models/qwen2-0.5b --quantize int8,int4 --peers llama.cpp,openvino"
    make bench ARGS="--sections framework --no-write"

Beside every speed of trained weights stands the perplexity of a text, by the server that was measured. Where SmolLM2
can't be fetched (see tests/real/fetch.py), `make bench` measures the demo model instead, without peers.

Prints a report, writes results/<model>-<processor>-<date>.json and its plots, and refreshes the documents. Peers are
installed with `python -m tests.bench.peers install`. Only numbers of one run compare; see README.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from djl_python.bench.arguments import counts
from djl_python.bench.command import terminable
from djl_python.config import ModelConfig, load_server_config, parse_model_spec
from djl_python.core.errors import ConfigError
from djl_python.engine.builtin.options import BuiltInOptions
from djl_python.sources import load_model_config
from tests.bench import adapters, document, encoders, floor, framework, machine, perplexity, quality, scenarios
from tests.bench.compare import Plan, compare, systems
from tests.bench.peers import DEFAULT_HOME, LitServe, Peer, installed
from tests.real import fetch

ROOT: Final = Path(__file__).resolve().parents[2]
DEMO: Final = ROOT / "serving_templates" / "demo"
SECTIONS: Final = ("load", "scenarios", "speculation", "framework", "quality", "adapters", "step", "encoders")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 if a server did not start or a request failed."""
    options = _parser().parse_args(argv)
    if options.model is None:
        options.model = trained_model()
        options.quantize = "" if options.model == DEMO else options.quantize or "int8,int4"
    home = options.peers_dir.expanduser().resolve()
    try:
        config = load_model_config(parse_model_spec(str(options.model.resolve())), load_server_config(None, {}))
        peers = _peers(options, home)
        texts = perplexity.texts(_checkpoint(options.model.resolve(), config))
    except (ConfigError, OSError, ValueError) as error:
        print(f"make bench: {error}", file=sys.stderr)
        return 2
    with terminable():
        result = measure(options, config, peers, home, texts)
    result["command"] = shlex.join(["python", "-m", "tests.bench.bench", *(sys.argv[1:] if argv is None else argv)])
    if not options.no_write:
        path = document.write(result)
        print(f"  written: {path.relative_to(ROOT)}", file=sys.stderr)
    print(document.report(result))
    for failure in result["failures"]:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if result["failures"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="model directory (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--peers", help="of the installed ones, separated by commas (default: all, but for the demo)")
    parser.add_argument("--peers-dir", type=Path, default=DEFAULT_HOME, metavar="DIR")
    parser.add_argument("--quantize", default="", help="modes to measure too, of int8,int4 (SmolLM2: both)")
    parser.add_argument("--concurrency", type=counts, default=[1, 8, 32], metavar="N,...")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument(
        "--contexts", type=_lengths, help="prompt lengths for one client, or none (default: 128,1024,4096 or less)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians count (default 3)")
    parser.add_argument("--sections", default=",".join(SECTIONS), help=f"of {','.join(SECTIONS)} (default: all)")
    parser.add_argument("--start-timeout-s", type=float, default=600.0)
    parser.add_argument("--no-write", action="store_true", help="print only: leave results and documents alone")
    return parser


def _lengths(text: str) -> list[int]:
    """Of --contexts."""
    return [] if text == "none" else counts(text)


def trained_model() -> Path:
    """The trained model, or the demo where there is none."""
    try:
        return fetch.fetch()
    except fetch.UnavailableError as reason:
        print(f"make bench: the demo model instead of SmolLM2: {reason}", file=sys.stderr)
        return DEMO


def _checkpoint(model: Path, config: ModelConfig) -> Path:
    return Path(config.option.model_id or model)


def _peers(options: argparse.Namespace, home: Path) -> list[Peer]:
    """What to compare with; nobody serves the demo model but us."""
    if options.peers is None:
        return [] if options.model.resolve() == DEMO else installed(home)
    return installed(home, [name for name in options.peers.split(",") if name])


def measure(
    options: argparse.Namespace, config: ModelConfig, peers: Sequence[Peer], home: Path, texts: perplexity.Texts
) -> dict[str, Any]:
    """Everything that was asked for, as one result; `texts` are empty where weights are random."""
    model = options.model.resolve()
    checkpoint = _checkpoint(model, config)
    modes = [mode for mode in options.quantize.split(",") if mode]
    sections, litserve = options.sections.split(","), LitServe(home)
    precision = _precision(checkpoint, config.option.dtype)
    plan = Plan(
        model=model,
        checkpoint=checkpoint,
        concurrency=options.concurrency,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        contexts=(
            _contexts(checkpoint, config, options.output_tokens) if options.contexts is None else options.contexts
        ),
        rounds=options.rounds,
        start_timeout_s=options.start_timeout_s,
        texts=texts,
    )
    if texts:  # no speed without what it costs
        peers = [peer for peer in peers if peer.tells_logprobs]
    seen = [machine.measure()]
    entered = systems(precision, modes, peers) if "load" in sections else []
    results, failures = compare(plan, entered, before_each=lambda: seen.append(machine.measure()))
    here = machine.typical(seen)
    result: dict[str, Any] = {
        "model": fetch.NAME if model == fetch.checkpoint().resolve() else model.name,
        "weights": told_weights(model, texts),
        "date": datetime.date.today().isoformat(),
        "machine": here,
        "plan": {key: value for key, value in asdict(plan).items() if key not in ("model", "checkpoint", "texts")},
        "floor": _floors(plan, here, [precision, *modes]),
        "systems": results,
        "failures": failures,
    }
    if "speculation" in sections:
        result["speculation"] = scenarios.speculation(plan)
    if "scenarios" in sections and _context(checkpoint, config) > scenarios.LONGEST:
        latencies = scenarios.measure(plan)
        result["scenarios"] = latencies
        result["failures"] += [f"scenarios: {latencies['first_failure']}"] if latencies["failed"] else []
    if "framework" in sections:
        result["framework"], wrong = framework.measure(plan.rounds, litserve if litserve.installed else None)
        result["failures"] += wrong
    if "quality" in sections and modes:
        result["quality"] = quality.measure(checkpoint, config.option.dtype, modes)
    if "adapters" in sections:
        result["adapters"] = adapters.measure(checkpoint, modes)
    if "step" in sections:
        result["step"] = [
            {"weights": mode or precision, **row}
            for mode in ("", *modes)
            for row in step_breakdown(checkpoint, config, mode, plan.concurrency)
        ]
    if "encoders" in sections:
        try:
            result["encoders"] = encoders.measure(encoders.Plan(rounds=plan.rounds), home)
        except (OSError, fetch.UnavailableError) as reason:
            result["failures"].append(f"encoders: {reason}")
    return result


def told_weights(model: Path, texts: perplexity.Texts) -> str:
    """What captions say of them."""
    if not texts:
        return document.RANDOM
    tokens = sum(map(len, texts))
    made = " unpacked from four bits to bf16," if model == fetch.checkpoint().resolve() else ""
    return f"trained weights,{made} perplexity of {tokens} tokens"


def _precision(checkpoint: Path, dtype: str) -> str:
    """The number format that the server will use: the setting's, else the checkpoint's."""
    if dtype != "auto":
        return dtype
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    named = config.get("dtype") or config.get("torch_dtype") or "float32"
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(named, named)


def _context(checkpoint: Path, config: ModelConfig) -> int:
    """Tokens of prompt and answer together, at most."""
    limit: int = json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings", 0)
    return min(limit, config.option.max_model_len or limit)


def _contexts(checkpoint: Path, config: ModelConfig, output_tokens: int) -> list[int]:
    limit = _context(checkpoint, config)
    return [length for length in (128, 1024, 4096) if length * 11 // 10 + output_tokens < limit]


def _floors(plan: Plan, figures: dict[str, Any], precisions: Sequence[str]) -> dict[str, dict[str, float]]:
    shape = floor.read_shape(plan.checkpoint)
    return {
        precision: {
            str(concurrency): round(
                floor.tokens_s(shape, figures, precision, concurrency, plan.prompt_tokens, plan.output_tokens), 1
            )
            for concurrency in plan.concurrency
        }
        for precision in precisions
    }


def step_breakdown(
    checkpoint: Path, config: ModelConfig, quantize: str, batch_sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Where the time of one decode step goes, in the engine alone: a row per batch size, all times in milliseconds.

    With the number format and threads that serving.properties gives the server; `quantize` instead of its own.
    """
    option, own = config.option, msgspec.convert(config.engine_options, BuiltInOptions)
    command = [
        sys.executable,
        "-m",
        "djl_python.engine.builtin.profile",
        str(checkpoint),
        "--json",
        "--dtype",
        option.dtype,
    ]
    command += ["--quantize", quantize or own.quantize, "--batch", *map(str, batch_sizes)]
    if own.threads:
        command += ["--threads", str(own.threads)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True)
    rows: list[dict[str, Any]] = json.loads(ended.stdout)
    return rows


if __name__ == "__main__":
    sys.exit(main())
