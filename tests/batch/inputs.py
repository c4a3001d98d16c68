"""Inputs of batches, and what is read of their outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from djl_python.batch.lines import InputFile, Rules, scan


def line(custom_id: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return path


def scanned(folder: Path, *lines: Any, **rules: Any) -> InputFile:
    return scan(write(folder / "in.jsonl", *lines), Rules(**rules))


def read(path: Path) -> list[Any]:
    return [json.loads(one) for one in path.read_text(encoding="utf-8").splitlines()]


def ids(path: Path) -> list[str]:
    return [one["custom_id"] for one in read(path)]
