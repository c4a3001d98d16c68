"""The arithmetic and the writing of the benchmark; measuring itself is `make bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import bench

ROW = {
    "concurrency": 8,
    "tokens_s": 100.0,
    "ttft_p50_ms": 1.5,
    "ttft_p99_ms": None,
    "itl_p50_ms": 0.25,
    "itl_p99_ms": 9.0,
    "failed": 1,
    "first_failure": "",
}
RESULT: dict[str, Any] = {
    "model": "tiny",
    "date": "2026-01-31",
    "command": "python -m tests.bench.bench",
    "machine": {"cpu": "a CPU", "cores": 2, "python": "3.11.0", "torch": "2.0", "transformers": "5.0"},
    "input_words": 4,
    "output_tokens": 8,
    "repeat": 3,
    "rows": [ROW],
    "step": [{"batch": 8, "step": 2.5, "model": 2.0, "operators": {"linear": 1.25}}],
}


def test_medians_do_not_hide_failures() -> None:
    runs = [ROW, {**ROW, "tokens_s": 50.0, "failed": 0}, {**ROW, "tokens_s": 80.0, "first_failure": "HTTP 503"}]
    row = bench.medians(runs)
    assert (row["tokens_s"], row["failed"], row["first_failure"], row["ttft_p99_ms"]) == (80.0, 2, "HTTP 503", None)


def test_results_are_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(bench, "README", readme)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    bench.write({**RESULT, "model": "other"})
    path = bench.write(RESULT)
    assert json.loads(path.read_text(encoding="utf-8")) == RESULT
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert text.index("### other") < text.index("### tiny")
    assert (
        "|       8 |    100.0 |         1.5 |           - |               0.25 |                9.0 |      1 |" in text
    )
    assert "|     8 |  2.5 |   2.0 |   1.25 |" in text


def test_the_kept_results_are_what_the_readme_shows() -> None:
    text = bench.README.read_text(encoding="utf-8")
    assert bench.BEGIN in text and bench.END in text
    for path in bench.RESULTS.glob("*.json"):
        assert bench.report(json.loads(path.read_text(encoding="utf-8"))) in text
