"""What `make bench` runs: a real server, measured at several concurrencies, and where one engine step's time goes.

    make bench                                   the demo model
    make bench ARGS="--model /path/to/model"     another
    make bench ARGS="--no-write"                 print only

Starts the server on a free port, drives it with `load.py` in a process of its own, prints the command and a table of
medians, writes results/<model>.json and refreshes the tables of README.md beside this file. Numbers of different
machines, or of one machine on different days, do not compare; numbers of one run do.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from djl_python.config import load_model_config, load_server_config, parse_model_spec
from djl_python.testing import RunningServer, running_server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
README = HERE / "README.md"
BEGIN, END = "<!-- results: written by make bench -->", "<!-- end of results -->"
DEMO = ROOT / "serving_templates" / "demo"
PROFILER = "djl_python.engine.profile"
COLUMNS = {
    "concurrency": "clients",
    "tokens_s": "tokens/s",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "TTFT p99 ms",
    "itl_p50_ms": "inter-token p50 ms",
    "itl_p99_ms": "inter-token p99 ms",
    "failed": "failed",
}


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Rows as a Markdown table of `columns` (key -> heading), right-aligned."""
    lines = [list(columns.values()), *([_cell(row[key]) for key in columns] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    text = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(text)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) and value < 1 else str(value)


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of several runs: the median of each number; failures are added up, not averaged away."""
    row: dict[str, Any] = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs if run[key] is not None]
        if isinstance(first, str):
            row[key] = next((run[key] for run in runs if run[key]), "")
        elif key == "failed":
            row[key] = sum(values)
        else:
            row[key] = round(statistics.median(values), 3) if values else None
    return row


def load(server: RunningServer, concurrency: int, requests: int, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run of load.py in its own process."""
    command = [sys.executable, "-m", "tests.bench.load", "--url", server.url, "--seed", str(seed)]
    command += ["-c", str(concurrency), "-n", str(requests)]
    command += ["--input-words", str(args.input_words), "--output-tokens", str(args.output_tokens)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    if not ended.stdout:
        raise SystemExit(f"load.py ended with status {ended.returncode}; the server said:\n{server.output()}")
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Serve the model, and give one row per concurrency."""
    rows = []
    with running_server("-m", f"bench={args.model}", start_timeout_s=args.start_timeout_s) as server:
        for concurrency in args.concurrency:
            load(server, concurrency, concurrency, 1_000_000, args)  # warm-up, with prompts of its own
            requests = max(16, 2 * concurrency)
            runs = [load(server, concurrency, requests, seed, args) for seed in range(args.repeat)]
            rows.append(medians(runs))
            print(f"  {concurrency} clients: {rows[-1]['tokens_s']} tokens/s", file=sys.stderr, flush=True)
    return rows


def step_breakdown(model: Path, batch_sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Where the time of one decode step goes, in the engine alone: a row per batch size, all times in milliseconds.

    With the number format and threads that serving.properties gives the server.
    """
    option = load_model_config(parse_model_spec(str(model)), load_server_config(None, {})).option
    command = [sys.executable, "-m", PROFILER, option.model_id or str(model), "--json", "--dtype", option.dtype]
    command += ["--batch", *map(str, batch_sizes)]
    if option.threads:
        command += ["--threads", str(option.threads)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True)
    rows: list[dict[str, Any]] = json.loads(ended.stdout)
    return rows


def machine() -> dict[str, Any]:
    """What the numbers depend on, as far as it has a name."""
    cpu = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "transformers")},
    }


def report(result: Mapping[str, Any]) -> str:
    """One result as Markdown."""
    on = result["machine"]
    parts = [
        f"### {result['model']}",
        f"{result['date']}; {on['cores']} cores of {on['cpu']}; torch {on['torch']}, "
        f"transformers {on['transformers']}, Python {on['python']}; "
        f"prompts of {result['input_words']} words, {result['output_tokens']} tokens generated; "
        f"medians of {result['repeat']}.",
        f"    {result['command']}",
        table(result["rows"], COLUMNS),
    ]
    parts += ["One decode step in the engine, in milliseconds:", _breakdown(result["step"])]
    return "\n\n".join(parts)


def _breakdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The profiler's rows as a table; the operators are what `model` consists of, slowed a little by being watched."""
    flat = [{**row, **row["operators"]} for row in rows]
    keys = dict.fromkeys(key for row in flat for key in row if key != "operators")
    return table([{key: row.get(key) for key in keys} for row in flat], {key: key for key in keys})


def write(result: Mapping[str, Any]) -> Path:
    """Keep the result, and rebuild the README's tables from all that are kept."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{result['model']}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    reports = [report(json.loads(kept.read_text(encoding="utf-8"))) for kept in sorted(RESULTS.glob("*.json"))]
    README.write_text(before + "\n\n".join([BEGIN, *reports, END]) + after, encoding="utf-8")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 if a request failed."""
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=DEMO, help="model directory (default: the demo model)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeat", type=int, default=3, help="runs per concurrency, of which the median counts")
    parser.add_argument("--input-words", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--start-timeout-s", type=float, default=600.0)
    parser.add_argument("--no-write", action="store_true", help="print only: leave results/ and README.md alone")
    args = parser.parse_args(argv)
    args.model = args.model.resolve()
    result = {
        "model": args.model.name,
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", "-m", "tests.bench.bench", *(sys.argv[1:] if argv is None else argv)]),
        "machine": machine(),
        **{key: getattr(args, key) for key in ("input_words", "output_tokens", "repeat")},
        "rows": measure(args),
        "step": step_breakdown(args.model, args.concurrency),
    }
    print(report(result))
    if not args.no_write:
        print(f"\nwritten: {write(result).relative_to(ROOT)}", file=sys.stderr)
    failures = [row["first_failure"] for row in result["rows"] if row["failed"]]
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
