"""Adapters of a model that is being served, over an engine that only listens."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ModelConfig
from djl_python.config.adapters import ADAPTER_FILE
from djl_python.core.errors import ModelNotFoundError, ParameterError, ServingError
from djl_python.engine.interface import Engine, engine_of
from djl_python.handlers.adapters import Adapters
from djl_python.ipc.protocol import AdapterChange

VLLM = engine_of("vllm")


class Listening:
    """An engine's client."""

    def __init__(self) -> None:
        self.changes: list[AdapterChange] = []
        self.refusal: ServingError | None = None

    async def change(self, change: AdapterChange) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.changes.append(change)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with an adapter, in a model's directory."""
    path = tmp_path / "model" / "adapters" / "a1"
    path.mkdir(parents=True)
    (path / ADAPTER_FILE).write_text('{"r": 8}')
    return path


def adapters(folder: Path, client: Listening, engine: Engine[Any] = VLLM) -> tuple[Adapters, dict[str, str]]:
    config = ModelConfig(
        name="m", path=str(folder), engine_options={"enable_lora": True}, cache_dir=str(folder / "cache")
    )
    return Adapters(config, engine, (folder,), client.change), config.adapters


async def test_an_adapter_is_named_once_the_engine_has_it(saved: Path) -> None:
    client = Listening()
    made, named = adapters(saved.parents[1], client)
    client.refusal = ParameterError("vLLM does not take it", "src")
    with pytest.raises(ParameterError, match="vLLM does not take it"):
        await made.change(AdapterChange(1, "register", "a1", str(saved)))
    assert named == {}
    client.refusal = None
    await made.change(AdapterChange(1, "register", "a1", str(saved), {"pin": "true"}))
    assert named == {"a1": str(saved)}
    assert client.changes == [AdapterChange(1, "register", "a1", str(saved), {"pin": "true"})]


async def test_where_an_adapter_may_be(saved: Path, tmp_path: Path) -> None:
    """A path in the model's directory, any other path, an archive, a file: URL: what a model's may be."""
    client = Listening()
    made, named = adapters(saved.parents[1], client)
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", saved)
    for source in ("adapters/a1", str(saved), f"file://{saved}", archive):
        await made.change(AdapterChange(1, "register", "a", source))
        assert (Path(named["a"]) / ADAPTER_FILE).is_file()


@pytest.mark.parametrize(
    ("source", "error", "told"),
    [
        ("/nowhere", ModelNotFoundError, "src: /nowhere: no such file or directory"),
        ("ftp://host/a", ParameterError, "src: .*ftp"),
        ("http://me:secret@host/a.zip", ParameterError, "no user and password"),
        ("adapters", ParameterError, "there is no adapter_config.json in .*/adapters: expected what peft saves"),
        ("x" * 5000, ParameterError, "src: .*"),
    ],
)
async def test_what_is_no_adapter(saved: Path, source: str, error: type[ServingError], told: str) -> None:
    client = Listening()
    made, named = adapters(saved.parents[1], client)
    with pytest.raises(error, match=told):
        await made.change(AdapterChange(1, "register", "a", source))
    assert (named, client.changes) == ({}, [])


async def test_an_adapter_goes_when_its_requests_are_answered(saved: Path) -> None:
    client = Listening()
    made, named = adapters(saved.parents[1], client)
    await made.change(AdapterChange(1, "register", "a1", str(saved)))
    with made.used(["a1"]):
        going = asyncio.create_task(made.change(AdapterChange(2, "unregister", "a1")))
        with made.used(["a1"]):  # parsed before the name went
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert named == {} and len(client.changes) == 1
    await going
    assert [change.operation for change in client.changes] == ["register", "unregister"]


async def test_an_engine_without_adapters_names_one_that_has_some(saved: Path) -> None:
    built_in = dataclasses.replace(engine_of("auto"), name="auto")
    made, _ = adapters(saved.parents[1], Listening(), built_in)
    with pytest.raises(ParameterError, match=r"LoRA is not enabled: .*rolling_batch=auto.*rolling_batch=vllm with"):
        await made.change(AdapterChange(1, "register", "a1", str(saved)))
