"""What an engine with LoRA adapters must do behind its client, whichever one it is. Real processes and sockets."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from djl_python.core.errors import MemoryLoadError, ParameterError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.client import EngineClient
from djl_python.ipc.protocol import AdapterChange
from tests.adapters import merge_, write_adapter
from tests.checkpoints import build_checkpoint
from tests.engines import Listener, Sink, generate
from tests.real.engines import cache_dir, lacking
from tests.real.fetch import checkpoint as weights

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: vLLM, in an environment of its own, is dear.
ENGINES = ["auto", pytest.param("vllm", marks=pytest.mark.slow)]
PROMPT = [5, 9, 30, 12, 44, 7, 7, 61]
TOKENS = 12
NAMES = ("first", "second")


@pytest.fixture(scope="module", params=ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    adapter: str = request.param
    return adapter


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        yield


@pytest.fixture(scope="module")
def checkpoint(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if name == "auto":
        return build_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    if reason := lacking(name) or ("" if weights().is_dir() else "SmolLM2 is not here: `make weights` fetches it"):
        pytest.skip(reason)
    return weights()


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(folder / name, checkpoint, seed=len(name), scale=0.2) for name in NAMES}


@pytest.fixture(scope="module")
def texts(checkpoint: Path, adapters: dict[str, Path]) -> dict[str, list[int]]:
    """What transformers generates, with each adapter merged into the weights; "": without."""
    token_ids = {}
    for adapter in ("", *NAMES):
        model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        token_ids[adapter] = generate(merge_(model, adapters[adapter]) if adapter else model, PROMPT, TOKENS)
    assert len({*map(tuple, token_ids.values())}) == len(token_ids)
    return token_ids


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(name: str, checkpoint: Path, adapters: dict[str, Path]) -> AsyncIterator[EngineClient]:
    listener = Listener()
    lora: dict[str, Any] = {"enable_lora": True, "max_loras": 3}
    own = {"engine_options": {**lora, "enforce_eager": True}, "cache_dir": str(cache_dir())} if name == "vllm" else lora
    client = await listener.open(
        checkpoint,
        adapters={one: str(path) for one, path in adapters.items()},
        rolling_batch=name,
        dtype="fp32",
        max_rolling_batch_size=4,
        **own,
    )
    yield client
    await client.close()
    assert listener.deaths == []


def submitted(client: EngineClient, adapter: str, tokens: int = TOKENS, version: int = 0) -> Sink:
    sink = Sink()
    sampling = SamplingParams(max_new_tokens=tokens, ignore_eos=tokens != TOKENS)
    client.submit(SequenceRequest(PROMPT, sampling, adapter=adapter, adapter_version=version), sink)
    return sink


async def ids_of(sink: Sink) -> list[int]:
    return [event.token_id for event in await sink.end()]


async def change(
    client: EngineClient, operation: Any, name: str, source: Path | str = "", version: int = 0, **options: str
) -> None:
    await client.change_adapter(AdapterChange(0, operation, name, str(source), options, version))


async def test_each_sequence_has_its_own(engine: EngineClient, texts: dict[str, list[int]]) -> None:
    """More of them than run at once, with and without one, beside each other."""
    names = ["first", "", "second", "first", "", "second", "first"]
    sinks = [submitted(engine, one) for one in names]
    assert [await ids_of(sink) for sink in sinks] == [texts[one] for one in names]


async def test_adapters_come_change_and_go(
    engine: EngineClient, adapters: dict[str, Path], texts: dict[str, list[int]], tmp_path: Path
) -> None:
    """What one computed is never another's, though they have the same name and the same path."""
    path = tmp_path / "adapter"
    shutil.copytree(adapters["first"], path)
    await change(engine, "register", "new", path, 1)
    assert await ids_of(submitted(engine, "new", version=1)) == texts["first"]
    shutil.rmtree(path)
    shutil.copytree(adapters["second"], path)
    await change(engine, "update", "new", path, 2)
    assert await ids_of(submitted(engine, "new", version=2)) == texts["second"]
    for version in (1, 2):
        await change(engine, "unregister", "new", version=version)
        (event,) = await submitted(engine, "new", version=version).end()
        assert event.error == "adapter new has been unregistered"
        await change(engine, "unregister", "new", version=version)


async def test_sequences_have_the_version_that_they_name(
    engine: EngineClient, adapters: dict[str, Path], texts: dict[str, list[int]], checkpoint: Path
) -> None:
    """An adapter that is replaced answers those that have begun and those that come, up to its end."""
    await change(engine, "register", "new", adapters["first"], 3)
    long = submitted(engine, "new", 60, version=3)
    await long.begun.wait()
    await change(engine, "update", "new", adapters["second"], 4)
    later = [submitted(engine, "new", version=version) for version in (3, 4)]
    assert [await ids_of(one) for one in later] == [texts["first"], texts["second"]]
    removed = asyncio.create_task(change(engine, "unregister", "new", version=3))
    events = await ids_of(long)
    await removed
    model: Any = merge_(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32), adapters["first"])
    model.generation_config.eos_token_id = None
    assert events == generate(model, PROMPT, 60)
    assert await ids_of(submitted(engine, "new", version=4)) == texts["second"]
    await change(engine, "unregister", "new", version=4)


async def test_an_adapter_that_cannot_be_loaded_costs_nothing(
    engine: EngineClient, checkpoint: Path, texts: dict[str, list[int]], tmp_path: Path
) -> None:
    big = write_adapter(tmp_path / "big", checkpoint, seed=1, rank=64)
    with pytest.raises(ParameterError, match=r"^adapter big has rank 64; expected at most option\.max_lora_rank="):
        await change(engine, "register", "big", big)
    hollow = write_adapter(tmp_path / "hollow", checkpoint, seed=1)
    (hollow / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ParameterError, match="adapter hollow"):
        await change(engine, "register", "hollow", hollow)
    assert await ids_of(submitted(engine, "first")) == texts["first"]


async def test_a_pinned_one_is_one_of_those_that_there_is_room_for(
    engine: EngineClient, adapters: dict[str, Path], texts: dict[str, list[int]]
) -> None:
    await change(engine, "register", "pinned", adapters["second"], pin="true", preload="true")
    assert await ids_of(submitted(engine, "pinned")) == texts["second"]
    await change(engine, "unregister", "pinned")


async def test_more_are_registered_than_run_at_once(
    name: str, engine: EngineClient, adapters: dict[str, Path], texts: dict[str, list[int]]
) -> None:
    """The built-in engine has each in its turn; on CPUs vLLM refuses those that it has no room for."""
    many = {f"one{number}": NAMES[number % 2] for number in range(6)}
    if name == "vllm":
        with pytest.raises(MemoryLoadError, match="there is room for"):
            for one, own in many.items():
                await change(engine, "register", one, adapters[own])
    else:
        for one, own in many.items():
            await change(engine, "register", one, adapters[own])
        sinks = {one: [submitted(engine, one) for _ in range(2)] for one in many}
        for one, own in many.items():
            assert [await ids_of(sink) for sink in sinks[one]] == [texts[own]] * 2
    for one in many:
        await change(engine, "unregister", one)
