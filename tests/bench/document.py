"""A result as Markdown and plots: all of it in README.md beside this file, less in performance.md and the README."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from djl_python.bench.report import cell, table
from tests.bench import encoders, plots

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
RESULTS: Final = HERE / "results"
BEGIN, END = "<!-- results: written by make bench -->", "<!-- end of results -->"
FLOOR: Final = "floor"
#: What captions say of results that are of shapes only; older results are.
RANDOM: Final = "random weights: no quality"
#: Key of a row -> what its table is called. Percentiles are shown as "p50 / p99".
_LATENCIES: Final = {"ttft": "Time to the first token, p50 / p99 ms", "itl": "Between tokens, p50 / p99 ms"}

#: Chart -> the key of a row that is its x axis, the axis's name, and where in a system's result the rows are.
_AXES: Final = {"clients": ("concurrency", "clients", "rows"), "contexts": ("context", "prompt tokens", "contexts")}
_PANELS: Final = {"tokens_s": "output tokens/s", "ttft_p50_ms": "TTFT p50, ms", "itl_p50_ms": "inter-token p50, ms"}

Result = Mapping[str, Any]


def report(result: Result) -> str:
    """Everything about one model."""
    machine, plan = result["machine"], result["plan"]
    gemm = ", ".join(f"{name} {cell(peak)}" for name, peak in machine["gemm_gflop_s"].items())
    parts = [
        f"### {_title(result)}",
        f"{result['date']}; {machine['cores']} cores of {machine['cpu']}: {_bandwidth(machine)} read by "
        f"{machine['read_by']}, GEMM peak in GFLOP/s {gemm}; torch {machine['torch']}, transformers "
        f"{machine['transformers']}, Python {machine['python']}. {_weights(result).capitalize()}. Prompts of "
        f"{plan['prompt_tokens']} tokens, {plan['output_tokens']} generated; {_rounds(result)}.",
        f"    {result['command']}",
        f"Output tokens per second, by clients ({_weights(result)}):",
        throughput(result),
    ]
    for key, title in _LATENCIES.items():
        parts += [f"{title}, by clients ({_weights(result)}):", _latencies(result, key)]
    if any(system["contexts"] for system in result["systems"]):
        title = "One client, by prompt tokens: output tokens per second, and time to the first token in ms"
        parts += [f"{title} ({_weights(result)}):", _contexts(result)]
    parts += [f"![{title}](results/{name})" for name, (title, _) in charts(result).items()]
    counted = [system for system in result["systems"] if any(row["short"] or row["failed"] for row in system["rows"])]
    if counted:
        rows = [{"system": system["name"], **row} for system in counted for row in system["rows"]]
        keys = {"system": "system", "concurrency": "clients", "requests": "requests", "short": "short"}
        parts += ["Answers that were shorter than asked for, and failures:", table(rows, {**keys, "failed": "failed"})]
    parts += [_versions(result)]
    for name, section in _SECTIONS.items():
        if result.get(name):
            parts += section(result)
    if result["failures"]:
        parts += ["Failed:", "\n".join(f"- {failure.splitlines()[0]}" for failure in result["failures"])]
    return "\n\n".join(parts)


def _bandwidth(machine: Mapping[str, Any]) -> str:
    """The median, and between what the measurements were where they differ."""
    least, most = (cell(seen) for seen in machine.get("read_gb_s_seen") or (machine["read_gb_s"],) * 2)
    return f"{cell(machine['read_gb_s'])} GB/s" + (f" ({least} to {most})" if least != most else "")


def throughput(result: Result) -> str:
    """Systems against clients; below them what can't be exceeded, and how we stand to it and to the best peer."""
    rows: list[dict[str, Any]] = [
        {**_named(system), **{str(row["concurrency"]): row["tokens_s"] for row in system["rows"]}}
        for system in result["systems"]
    ]
    rows += [{"system": f"{FLOOR} {name}", **_keys(values)} for name, values in result["floor"].items()]
    for ours in (system for system in result["systems"] if system["ours"]):
        precision = ours["precision"]
        speed = _speeds(ours)
        peers = [_speeds(one) for one in result["systems"] if not one["ours"] and one["precision"] == precision]
        best = {key: max((peer[key] for peer in peers if key in peer), default=None) for key in speed}
        if any(best.values()):
            rows.append(_ratios(f"{ours['name']} / best peer", speed, best))
        if precision in result["floor"]:
            rows.append(_ratios(f"{ours['name']} / {FLOOR}", speed, _keys(result["floor"][precision])))
    return table(rows, _columns(result, "concurrency"))


def _named(system: Result) -> dict[str, Any]:
    """How a system's row begins."""
    quality = system.get("perplexity")
    return {"system": system["name"], "perplexity": None if quality is None else f"{quality:.2f}"}


def _columns(result: Result, given: str) -> dict[str, str]:
    """The columns of a table of systems: one for each number of clients or length of prompts; quality before speed."""
    quality = {"perplexity": "perplexity"} if _is_trained(result) else {}
    return {"system": "system", **quality, **{str(number): str(number) for number in result["plan"][given]}}


def _weights(result: Result) -> str:
    weights: str = result.get("weights", RANDOM)
    return weights


def _is_trained(result: Result) -> bool:
    return _weights(result) != RANDOM


def _rounds(result: Result) -> str:
    """How many runs each number is the median of."""
    rounds = result["plan"]["rounds"]
    return "one round" if rounds == 1 else f"medians of {rounds} interleaved rounds"


def _title(result: Result) -> str:
    """A model on a kind of processor, whose newest result is kept."""
    return f"{result['model']} on {result['machine']['kind']}"


def _stem(result: Result) -> str:
    """How the names of its files begin."""
    return f"{result['model']}-{result['machine']['kind']}-{result['date']}"


def _keys(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in values.items()}


def _speeds(system: Result) -> dict[str, float]:
    return {str(row["concurrency"]): row["tokens_s"] for row in system["rows"]}


def _ratios(name: str, of: Mapping[str, float], to: Mapping[str, float | None]) -> dict[str, Any]:
    return {"system": name, **{key: f"{of[key] / other:.2f}" for key in of if (other := to.get(key))}}


def _latencies(result: Result, key: str) -> str:
    rows = [
        {
            **_named(system),
            **{
                str(row["concurrency"]): f"{cell(row[f'{key}_p50_ms'])} / {cell(row[f'{key}_p99_ms'])}"
                for row in system["rows"]
            },
        }
        for system in result["systems"]
    ]
    return table(rows, _columns(result, "concurrency"))


def _contexts(result: Result) -> str:
    rows = [
        {
            **_named(system),
            **{
                str(row["context"]): f"{cell(row['tokens_s'])}, {cell(row['ttft_p50_ms'])}"
                for row in system["contexts"]
            },
        }
        for system in result["systems"]
    ]
    return table(rows, _columns(result, "contexts"))


def _versions(result: Result) -> str:
    known = {one["name"].rpartition(" ")[0]: one["version"] for one in result["systems"] if one["version"]}
    ready = ", ".join(f"{one['name']} {cell(min(one['ready_s']))}" for one in result["systems"] if one["ready_s"])
    versions = "".join(f" {name}: {version}." for name, version in known.items())
    return f"Seconds from start to ready, the best of the rounds: {ready}.{versions}"


def _framework(result: Result) -> list[str]:
    framework = result["framework"]
    parts = ["What serving costs:"]
    shares = [
        {"system": system["name"], "clients": row["concurrency"], **framework_share(row)}
        for system in result["systems"]
        if system["ours"]
        for row in system["rows"]
    ]
    names = {"system": "system", "clients": "clients", "step": "ms a step", "front": "front end, CPU ms a step"}
    parts.append(table(shares, {**names, "worker": "worker, CPU ms a step", "share": "both / step"}))
    streams = {"engine": "engine", "dialect": "dialect", "concurrency": "streams", "tokens_s": "tokens/s"}
    streams |= {"tokens_per_piece": "tokens a read", "server_cpu_s": "server CPU s", "client_cpu_s": "client CPU s"}
    parts += ["Tokens through HTTP, from engines that compute nothing:", table(framework["streams"], streams)]
    requests = {"name": "server", "concurrency": "clients", "requests_s": "requests/s", "ttft_p50_ms": "p50 ms"}
    requests |= {"ttft_p99_ms": "p99 ms", "server_cpu_s": "server CPU s", "client_cpu_s": "client CPU s"}
    parts += ["Requests to a handler that does nothing:", table(framework["requests"], requests)]
    return parts


def framework_share(row: Result) -> dict[str, Any]:
    """Milliseconds of an engine's step in one of our rows, of CPU in the two processes around it, and their ratio."""
    steps = row["steps"] or 1
    step, front, worker = (1e3 * row[key] / steps for key in ("step_s", "server_cpu_s", "worker_cpu_s"))
    share = f"{(front + worker) / step:.1%}" if step else None
    return {"step": step, "front": front, "worker": worker, "share": share}


def _quality(result: Result) -> list[str]:
    rows = [{"mode": mode, **values} for mode, values in result["quality"].items()]
    columns = {"mode": "weights", "mean_kl": "mean KL, nats a token", "same_token": "same likeliest token"}
    title = "What quantization costs: next-token distributions against the same model's as configured:"
    return [title, table(rows, columns)]


def _adapters(result: Result) -> list[str]:
    shares = ("unused", "share")
    rows = [{**row, **{name: f"{row[name]:.0%}" for name in shares if name in row}} for row in result["adapters"]]
    columns = {"weights": "weights", "sequences": "sequences", "adapters": "adapters",
               "plain": "tokens/s of an engine that has none", "base": "tokens/s without", "unused": "share",
               "adapted": "tokens/s with", "share": "share of without"}  # fmt: skip
    return ["What LoRA adapters of rank 16 for all linears cost in decode steps:", table(rows, columns)]


def _step(result: Result) -> list[str]:
    """The profiler's rows; the operators are what `model` consists of."""
    flat = [{**row, **row["operators"]} for row in result["step"]]
    keys = dict.fromkeys(key for row in flat for key in row if key != "operators")
    title = "One decode step in the engine, in milliseconds, with sampling parameters of all kinds:"
    return [title, table(flat, {key: key for key in keys})]


def _speculation(result: Result) -> list[str]:
    rows = [
        {"text": f"a text that {text}", **rates, "ratio": rates["ngram"] / rates["none"]}
        for text, rates in result["speculation"].items()
    ]
    columns = {"text": "tokens/s of one client", "none": "no drafts", "ngram": "prompt lookup", "ratio": "ratio"}
    return ["Drafts:", table(rows, columns)]


def _scenarios(result: Result) -> list[str]:
    times = result["scenarios"]
    if None in times.values():
        return [f"Long prompts beside streams: not measured; {times['failed']} requests failed."]
    between, again = times["itl_p99_ms"] / times["itl_p50_ms"], times["ttft_first_ms"] / times["ttft_again_ms"]
    return [
        f"While prompts of {cell(times['prompt_tokens'])} tokens arrive, the time between tokens of others is "
        f"{cell(times['itl_p50_ms'])} ms (p50) and {cell(times['itl_p99_ms'])} ms (p99, {between:.1f} times as long). "
        f"Such a prompt's first token takes {cell(times['ttft_first_ms'])} ms, and {cell(times['ttft_again_ms'])} ms "
        f"when it is asked again ({again:.1f} times as fast)."
    ]


#: Key of a result -> how it is written.
_SECTIONS: Final[Mapping[str, Callable[[Result], list[str]]]] = {
    "scenarios": _scenarios,
    "speculation": _speculation,
    "framework": _framework,
    "quality": _quality,
    "adapters": _adapters,
    "step": _step,
    "encoders": lambda result: [encoders.report(result["encoders"])],
}


def charts(result: Result) -> dict[str, tuple[str, str]]:
    """File name -> (what it shows, SVG): for each precision one by clients and, where measured, one by context."""
    files = {}
    for precision in dict.fromkeys(system["precision"] for system in result["systems"]):
        systems = [one for one in result["systems"] if one["precision"] == precision and one["rows"]]
        systems.sort(key=lambda system: not system["ours"])  # ours first: it gets the colour that stands out
        floor = [(float(clients), speed) for clients, speed in result["floor"].get(precision, {}).items()]
        for kind, (x, label, rows) in _AXES.items():
            panels = []
            for key, title in _PANELS.items():
                lines = {
                    system["name"]: [(row[x], row[key]) for row in system[rows] if row[key] is not None]
                    for system in systems
                }
                lines = {name: line for name, line in lines.items() if line}
                if rows == "rows" and key == "tokens_s" and floor:
                    lines[f"{FLOOR} {precision}"] = floor
                panels.append(plots.Panel(title, label, lines, (f"{FLOOR} {precision}",)))
            if any(panel.lines for panel in panels):
                title = f"{_title(result)}, {precision}, by {label} ({_weights(result)})"
                files[f"{_stem(result)}-{precision}-{kind}.svg"] = (title, plots.svg(panels))
    return files


def kept(results: Path = RESULTS) -> list[Result]:
    """The newest result of each model on each kind of processor; those of trained weights first."""
    newest: dict[str, Result] = {}
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["date"] >= newest.get(_title(result), result)["date"]:
            newest[_title(result)] = result
    return sorted(newest.values(), key=lambda result: not _is_trained(result))


def summary(results: Sequence[Result]) -> str:
    """The short version: throughput only."""
    parts = []
    for result in results:
        machine = result["machine"]
        where = f"{machine['cores']} cores of {machine['cpu']} ({machine['kind']})"
        parts += [f"`{result['model']}`, {where}, {result['date']}; {_weights(result)}; {_rounds(result)}, by clients:"]
        parts += [throughput(result), f"    {result['command']}"]
    return "\n\n".join(parts)


def headline(results: Sequence[Result]) -> str:
    """The shortest version: the newest throughput of a model with trained weights, without floors and ratios."""
    result = max(filter(_is_trained, results), key=lambda result: str(result["date"]), default=None)
    if result is None:
        return "No model with trained weights has been measured."
    rows = [
        {**_named(system), **{str(row["concurrency"]): row["tokens_s"] for row in system["rows"]}}
        for system in result["systems"]
    ]
    machine = result["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']} ({machine['kind']})"
    caption = f"`{result['model']}`, {where}, {result['date']}; {_weights(result)}; by clients:"
    return f"{caption}\n\n{table(rows, _columns(result, 'concurrency'))}"


#: What shows results between its markers, and how much of them.
DOCUMENTS: Final[Mapping[Path, Callable[[Sequence[Result]], str]]] = {
    HERE / "README.md": lambda results: "\n\n".join(map(report, results)),
    ROOT / "djl_python" / "docs" / "performance.md": summary,
    ROOT / "README.md": headline,
}


def write(
    result: Result,
    *,
    results: Path = RESULTS,
    documents: Mapping[Path, Callable[[Sequence[Result]], str]] = DOCUMENTS,
) -> Path:
    """Keep the result and its plots, and refresh the documents."""
    results.mkdir(exist_ok=True)
    path = results / f"{_stem(result)}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, (_, text) in charts(result).items():
        (results / name).write_text(text, encoding="utf-8")
    everything = kept(results)
    for document, shown in documents.items():
        before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
        text = "\n\n".join([BEGIN, shown(everything), END])
        document.write_text(before + text + rest.partition(END)[2], encoding="utf-8")
    return path
