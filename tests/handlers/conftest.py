from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from djl_python.dialects import DIALECTS

from .harness import BYTES, EOS, PlainDialect, Served


@pytest.fixture(autouse=True)
def plain_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, "plain", f"{PlainDialect.__module__}:PlainDialect")
    monkeypatch.setitem(sys.modules, PlainDialect.__module__, sys.modules[PlainDialect.__module__])


@pytest.fixture(autouse=True)
def user_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What importing a model.py leaves behind is taken away again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    BYTES.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
async def served(model_dir: Path) -> Served:
    return await Served(model_dir).load()
