"""Adapters of a model that is being served, over an engine that only listens."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from djl_python.config import ModelConfig, Options
from djl_python.config.adapters import ADAPTER_FILE
from djl_python.core.errors import ModelNotFoundError, ParameterError, ServingError
from djl_python.engine.row import Engine, engine_of
from djl_python.handlers.adapters import Adapters
from djl_python.handlers.user_formatters import UserFormatters
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


async def run(owners: tuple[()], function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)


def adapters(folder: Path, client: Listening, engine: Engine[Any] = VLLM) -> tuple[Adapters, dict[str, str]]:
    config = ModelConfig(
        name="m", path=str(folder), engine_options={"enable_lora": True}, cache_dir=str(folder / "cache")
    )
    return Adapters(config, engine, (folder,), UserFormatters(config, folder, run), client.change), config.adapters


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
    (sent,) = client.changes
    assert sent == AdapterChange(1, "register", "a1", str(saved), {"pin": "true"}, version=sent.version)


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
async def test_a_source_that_is_no_adapter_is_refused(
    saved: Path, source: str, error: type[ServingError], told: str
) -> None:
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


async def test_an_adapter_that_is_replaced_goes_when_its_requests_are_answered(saved: Path) -> None:
    """Those that come later have its replacement: they neither wait for the others nor keep them from ending."""
    client = Listening()
    made, _ = adapters(saved.parents[1], client)
    await made.change(AdapterChange(1, "register", "a1", str(saved)))
    with made.used(["a1"]) as first:
        replacing = asyncio.create_task(made.change(AdapterChange(2, "update", "a1", str(saved))))
        while made.versions == first:
            await asyncio.sleep(0)
        with made.used(["a1"]) as second:
            again = asyncio.create_task(made.change(AdapterChange(3, "update", "a1", str(saved))))
            while made.versions == second:
                await asyncio.sleep(0)
            versions = [first["a1"], second["a1"], made.versions["a1"]]
            assert len(set(versions)) == 3
            assert [change.operation for change in client.changes] == ["register", "update", "update"]
        await again
        assert not replacing.done()
        gone = [change.version for change in client.changes if change.operation == "unregister"]
        assert gone == [second["a1"]]
    await replacing
    await made.change(AdapterChange(4, "unregister", "a1"))
    gone = [change.version for change in client.changes if change.operation == "unregister"]
    assert gone == [versions[1], versions[0], versions[2]]
    with pytest.raises(ParameterError, match="adapter a1 has been unregistered"), made.used(["a1"]):
        pass


async def test_an_engine_without_adapters_names_those_that_have_some(saved: Path) -> None:
    made, _ = adapters(saved.parents[1], Listening(), engine_of("deepspeed"))
    with pytest.raises(ParameterError, match=r"rolling_batch=deepspeed serves .* without adapters; auto and vllm"):
        await made.change(AdapterChange(1, "register", "a1", str(saved)))


async def test_adapters_that_are_not_enabled_are_refused(saved: Path) -> None:
    config = ModelConfig(name="m", path=str(saved.parents[1]))
    formatters = UserFormatters(config, saved.parents[1], run)
    made = Adapters(config, engine_of("auto"), (saved.parents[1],), formatters, Listening().change)
    with pytest.raises(ParameterError, match=r"LoRA is not enabled: option\.enable_lora=true has"):
        await made.change(AdapterChange(1, "register", "a1", str(saved)))


@pytest.mark.parametrize("trusted", [False, True])
async def test_code_of_an_adapter_of_the_hub_needs_trust(
    saved: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    (saved / "model.py").write_text("from djl_python.output_formatter import output_formatter\n")
    monkeypatch.setattr("djl_python.handlers.adapters.fetch_model", lambda source, cache_dir: saved)
    config = ModelConfig(
        name="m", engine_options={"enable_lora": True}, option=Options(trust_remote_code=trusted), cache_dir="/cache"
    )
    made = Adapters(config, VLLM, (), UserFormatters(config, saved, run), Listening().change)
    change = AdapterChange(1, "register", "a1", "hf://owner/name")
    if trusted:
        await made.change(change)
        assert config.adapters == {"a1": str(saved)}
    else:
        with pytest.raises(ParameterError, match=r"model\.py: option\.trust_remote_code=true runs code of the hub's"):
            await made.change(change)
