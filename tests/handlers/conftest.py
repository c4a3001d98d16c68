from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from djl_python.dialects import DIALECTS
from tests.handlers.harness import BYTES, EOS, PlainDialect, Served
from tests.sketches import write_sketch


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


Watch = Callable[[type, str], list[bool]]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Tells of each call of a method whether the event loop went on meanwhile."""

    def watch(owner: type, name: str) -> list[bool]:
        loop, method = asyncio.get_running_loop(), getattr(owner, name)
        went_on: list[bool] = []

        def watched(*args: Any, **kwargs: Any) -> Any:
            turn = threading.Event()
            loop.call_soon_threadsafe(turn.set)
            went_on.append(turn.wait(1))
            return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)
        return went_on

    return watch


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    write_sketch(tmp_path)
    BYTES.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    return tmp_path


@pytest.fixture
async def served(model_dir: Path) -> Served:
    return await Served(model_dir).load()
