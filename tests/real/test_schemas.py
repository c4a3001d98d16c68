"""Public schemas: every text that a grammar of one leads to is an instance, or the schema is refused beforehand."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grammars import byte_compiler, outcomes_of
from tests.real.schemas import schemas

#: Schemas within schemas that are tried of each file: with their definitions, those are small schemas of their own.
PARTS = 25


@pytest.fixture(scope="session")
def files() -> list[Path]:
    path = schemas()
    if not path.is_dir():
        pytest.skip("they have not been fetched: `make test` and `python -m tests.real.schemas` do, and say why not")
    return [file for file in sorted(path.glob("*.json")) if file.stat().st_size < 200_000]


def parts(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        for key in ("properties", "$defs", "definitions"):
            named = schema.get(key)
            for one in named.values() if isinstance(named, dict) else ():
                if isinstance(one, dict):
                    yield one
                    yield from parts(one)


@pytest.mark.slow
def test_public_schemas(files: list[Path], tmp_path: Path) -> None:
    compiler, octets = byte_compiler(tmp_path)
    outcomes = Counter[str]()
    for file in files:
        whole = json.loads(file.read_text("utf-8"))
        shared = {key: whole[key] for key in ("$defs", "definitions", "$schema") if key in whole}
        for schema in [whole, *({**one, **shared} for one in [*parts(whole)][:PARTS])]:
            outcomes += outcomes_of(schema, compiler, octets, random.Random(1), texts=2)
    assert outcomes["written"] > 300 and outcomes["endless"] < outcomes["written"] / 10, outcomes
