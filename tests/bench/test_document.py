"""Results on paper: what is kept, and what the documents show of it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from djl_python.bench.report import COLUMNS, cell, medians, shown, table
from tests.bench import document

ROW: dict[str, Any] = {
    "concurrency": 8,
    "requests": 24,
    "tokens_s": 100.0,
    "ttft_p50_ms": 1.5,
    "ttft_p99_ms": None,
    "itl_p50_ms": 0.25,
    "itl_p99_ms": 9.0,
    "short": 0,
    "failed": 0,
    "first_failure": "",
}
OURS = {**ROW, "step_s": 1.0, "steps": 100, "server_cpu_s": 0.02, "worker_cpu_s": 0.03, "engine_cpu_s": 1.0}
RESULT: dict[str, Any] = {
    "model": "tiny",
    "date": "2026-01-31",
    "command": "python -m tests.bench.bench",
    "machine": {
        **{"cpu": "a CPU", "kind": "avx9", "cores": 2, "python": "3.11.0", "torch": "2.0", "transformers": "5.0"},
        **{"read_gb_s": 50.0, "read_gb_s_seen": [31.0, 58.0], "read_by": "torch", "gemm_gflop_s": {"bf16": 900.0}},
    },
    "plan": {"prompt_tokens": 4, "output_tokens": 8, "rounds": 3, "concurrency": [8], "contexts": [512]},
    "floor": {"bf16": {"8": 400.0}},
    "systems": [
        {
            **{"name": "djl-serving bf16", "ours": True, "precision": "bf16", "version": "", "ready_s": [3.0, 2.0]},
            **{"rows": [OURS], "contexts": [{**OURS, "context": 512}]},
        },
        {
            **{"name": "peer bf16", "ours": False, "precision": "bf16", "version": "1.2", "ready_s": [9.0]},
            **{"rows": [{**ROW, "tokens_s": 80.0, "short": 2, "failed": 1}], "contexts": []},
        },
    ],
    "failures": ["other bf16: it ended with status 1:\nTraceback"],
    "framework": {
        "streams": [{**ROW, "engine": "echo", "dialect": "lmi", "server_cpu_s": 1.0, "client_cpu_s": 0.5}],
        "requests": [{**ROW, "name": "litserve", "requests_s": 900.0, "server_cpu_s": 1.0, "client_cpu_s": 0.5}],
    },
    "scenarios": {
        **{"itl_p50_ms": 10.0, "itl_p99_ms": 25.0, "ttft_first_ms": 900.0, "ttft_again_ms": 30.0},
        **{"prompt_tokens": 2001.0, "failed": 0, "first_failure": ""},
    },
    "speculation": {"repeats itself": {"none": 100.0, "ngram": 300.0}, "does not": {"none": 100.0, "ngram": 99.0}},
    "quality": {"int8": {"mean_kl": 0.001, "same_token": 0.99}},
    "adapters": [
        {
            "weights": "none",
            "sequences": 32,
            "adapters": 8,
            "plain": 903.0,
            "base": 900.0,
            "unused": 0.997,
            "adapted": 786.6,
            "share": 0.874,
        },
    ],
    "step": [{"weights": "bf16", "batch": 8, "step": 2.5, "model": 2.0, "operators": {"linear": 1.25}}],
}


def test_medians_keep_the_settings_of_a_row() -> None:
    made = medians([{**ROW, "context": 512}, {**ROW, "context": 512, "tokens_s": 110.0}])
    assert (made["concurrency"], made["context"], made["tokens_s"]) == (8, 512, 105.0)
    assert isinstance(made["context"], int), "a column's heading"


def test_medians_do_not_hide_failures() -> None:
    runs = [ROW, {**ROW, "tokens_s": 50.0, "failed": 2}, {**ROW, "tokens_s": 80.0, "first_failure": "HTTP 503"}]
    row = medians(runs)
    assert (row["tokens_s"], row["failed"], row["first_failure"], row["ttft_p99_ms"]) == (80.0, 2, "HTTP 503", None)
    assert (row["concurrency"], row["requests"]) == (8, 72)


def test_tables_line_up() -> None:
    lines = table([ROW, {**ROW, "concurrency": 1024}], {"concurrency": "clients", "ttft_p99_ms": "p99"}).splitlines()
    assert lines == ["| clients | p99 |", "|--------:|----:|", "|       8 |   - |", "|    1024 |   - |"]
    assert table([{"name": "a"}], {"name": "server"}).splitlines()[1:] == ["|:-------|", "| a      |"]
    assert [cell(value) for value in (None, 0.12345, 12.345, 1234.5, 7, "x")] == [
        "-",
        "0.123",
        "12.3",
        "1234",
        "7",
        "x",
    ]
    assert set(COLUMNS) >= {"failed", "short", "client_cpu_s"}


def test_a_report_has_floor_ratios_costs_and_failures() -> None:
    text = re.sub(" +", " ", document.report(RESULT))
    for expected in (
        "50.0 GB/s (31.0 to 58.0) read by torch",
        "| djl-serving bf16 | 100.0 |",
        "| floor bf16 | 400.0 |",
        "| djl-serving bf16 / best peer | 1.25 |",
        "| djl-serving bf16 / floor | 0.25 |",
        "| djl-serving bf16 | 1.5 / - |",  # time to the first token
        "| djl-serving bf16 | 100.0, 1.5 |",  # by context
        "djl-serving bf16 2, peer bf16 9. peer: 1.2.",
        "| peer bf16 | 8 | 24 | 2 | 1 |",
        "| 5.0% |",  # 20 + 30 ms of 1,000
        "25.0 ms (p99, 2.5 times as long)",
        "30.0 ms when it is asked again (30.0 times as fast)",
        "| litserve | 8 | 900.0 |",
        "| int8 | 0.001 | 0.99 |",
        "| none | 32 | 8 | 903.0 | 900.0 | 100% | 786.6 | 87% |",
        "| 8 | 2.5 | 2 | 1.25 |",
        "- other bf16: it ended with status 1:",
    ):
        assert expected in text, expected
    assert "Traceback" not in text


def test_quality_stands_beside_every_speed_of_trained_weights() -> None:
    weights = "trained weights, perplexity of 9 tokens"
    known = [{**one, "perplexity": 11.8765} for one in RESULT["systems"]]
    trained = {**RESULT, "weights": weights, "systems": known}
    text = re.sub(" +", " ", document.report(trained))
    for expected in (
        "Trained weights, perplexity of 9 tokens.",
        "| system | perplexity | 8 |",
        "| system | perplexity | 512 |",
        "| djl-serving bf16 | 11.88 | 100.0 |",
        "| djl-serving bf16 | 11.88 | 1.5 / - |",
        "| djl-serving bf16 | 11.88 | 100.0, 1.5 |",
        "| djl-serving bf16 / best peer | - | 1.25 |",
    ):
        assert expected in text, expected
    assert text.count(f"({weights})") == 6  # tables by clients and by context, and plots
    assert "no quality" not in text
    assert weights in document.summary([trained]) and "perplexity" not in document.throughput(RESULT)


def test_random_weights_are_said_to_be() -> None:
    """Results that say nothing of their weights are of random ones."""
    for result in (RESULT, {**RESULT, "weights": document.RANDOM}):
        assert document.report(result).count("andom weights: no quality") == 7
        short = document.summary([result])
        assert "random weights: no quality" in short and f"    {RESULT['command']}" in short


def test_trained_weights_come_first(tmp_path: Path) -> None:
    for model, date, changed in (("a", "2026-01-02", {}), ("b", "2026-01-01", {"weights": "trained weights"})):
        document.write({**RESULT, "model": model, "date": date, **changed}, results=tmp_path, documents={})
    assert [result["model"] for result in document.kept(tmp_path)] == ["b", "a"]


@pytest.mark.parametrize(("rounds", "said"), [(1, "one round"), (3, "medians of 3 interleaved rounds")])
def test_both_versions_say_how_many_rounds_were_run(rounds: int, said: str) -> None:
    result = {**RESULT, "plan": {**RESULT["plan"], "rounds": rounds}}
    for text in (document.report(result), document.summary([result])):
        assert said in text


def test_results_are_kept_and_shown(tmp_path: Path) -> None:
    long, short = tmp_path / "README.md", tmp_path / "SHORT.md"
    for path in (long, short):
        path.write_text(f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n", encoding="utf-8")
    results = tmp_path / "results"
    elsewhere = {"machine": {**RESULT["machine"], "kind": "avx8"}}
    for changed in (
        {"model": "other", "date": "2026-01-01"},
        {"date": "2025-12-31"},
        {"date": "2026-01-02", **elsewhere},
        {},
    ):
        path = document.write(
            {**RESULT, **changed},
            results=results,
            documents={long: document.DOCUMENTS[document.HERE / "README.md"], short: document.summary},
        )
    assert json.loads(path.read_text(encoding="utf-8")) == RESULT
    for readme in (long, short):
        text = readme.read_text(encoding="utf-8")
        assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
        assert "2025-12-31" not in text  # the newest of a model only, on each kind of processor
        assert "2026-01-02" in text
    assert "### other on avx9" in long.read_text(encoding="utf-8") and "###" not in short.read_text(encoding="utf-8")
    for name in document.charts(RESULT):
        assert f"](results/{name})" in long.read_text(encoding="utf-8")
        picture = ElementTree.parse(results / name).getroot()
        words = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
        assert {"djl-serving bf16", "TTFT p50, ms"} <= set(words)
    names = ["tiny-avx9-2026-01-31-bf16-clients.svg", "tiny-avx9-2026-01-31-bf16-contexts.svg"]
    assert sorted(document.charts(RESULT)) == names
    assert "floor bf16" in (results / names[0]).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", document.DOCUMENTS, ids=lambda path: str(path.relative_to(document.ROOT)))
def test_the_documents_show_the_kept_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(document.BEGIN) == text.count(document.END) == 1
    assert document.DOCUMENTS[path](document.kept()) in text


def test_the_headline_is_the_newest() -> None:
    old = {**RESULT, "model": "smol", "weights": "trained weights", "date": "2026-01-01"}
    new = {**old, "date": "2026-02-01"}
    for results in ([old, new], [new, old]):
        assert "2026-02-01" in document.headline(results)


def test_the_headline_is_of_trained_weights() -> None:
    trained = {**RESULT, "model": "smol", "weights": "trained weights"}
    text = re.sub(" +", " ", document.headline([RESULT, trained]))
    assert text.startswith("`smol`, 2 cores of a CPU (avx9), 2026-01-31; trained weights; by clients:\n\n| system |")
    assert "| djl-serving bf16 | - | 100.0 |" in text
    assert "floor" not in text and "best peer" not in text
    assert document.headline([RESULT]) == "No model with trained weights has been measured."


def test_a_table_that_is_too_wide_is_turned() -> None:
    rows = [{"concurrency": 1, "tokens_s": 100.5}, {"concurrency": 8, "tokens_s": 1000.0}]
    assert shown(rows, 80).splitlines()[0] == "| clients | tokens/s |"
    assert shown(rows, 10).splitlines() == [
        "| clients  |     1 |    8 |",
        "|:---------|------:|-----:|",
        "| tokens/s | 100.5 | 1000 |",
    ]
