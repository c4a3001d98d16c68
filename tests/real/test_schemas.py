"""Public schemas: every text that a grammar of one leads to is an instance, or the schema is refused beforehand."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema.validators import validator_for

from djl_python.core.errors import ParameterError
from djl_python.core.types import Grammar
from djl_python.engine.sampling.grammar import Matcher
from djl_python.formats.json_schema import check, closed
from tests.grammars import byte_compiler, written
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


def test_public_schemas(files: list[Path], tmp_path: Path) -> None:
    compiler, octets = byte_compiler(tmp_path)
    outcomes = Counter[str]()
    for file in files:
        whole = json.loads(file.read_text("utf-8"))
        shared = {key: whole[key] for key in ("$defs", "definitions", "$schema") if key in whole}
        for schema in [whole, *({**one, **shared} for one in [*parts(whole)][:PARTS])]:
            draw = random.Random(1)
            try:
                check(schema, "schema")
                grammar = Grammar("json_schema", json.dumps(closed(schema)))
                compiled = compiler.compile(grammar).result()
            except ParameterError:
                outcomes["refused"] += 1
                continue
            for _ in range(2):
                text = written(Matcher(compiled), octets, draw)
                outcomes["endless" if text is None else "written"] += 1
                if text is not None:
                    validator_for(schema)(schema).validate(json.loads(text))
    assert outcomes["written"] > 300 and outcomes["endless"] < outcomes["written"] / 10, outcomes
