"""What every engine must do behind its client, asked of each kind: stepped by the loop, or on a schedule of its own.

Real processes, sockets and signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import FinishReason, SamplingParams
from djl_python.engine.client import EngineClient
from djl_python.testing import FAKE_ASYNC_ENGINE, FAKE_ENGINE
from tests.checkpoints import build_checkpoint
from tests.engine.trtllm.conftest import pretend
from tests.engines import Listener, Sink
from tests.real.engines import NAMES, cache_dir, lacking
from tests.real.fetch import checkpoint as weights

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: The built-in engine, with a model most of whose weights are on disk.
OFFLOADED = "offloaded"
#: What NAMES have in environments of their own is dear.
ENGINES = [
    "auto",
    "echo",
    FAKE_ENGINE,
    FAKE_ASYNC_ENGINE,
    *(pytest.param(one, marks=pytest.mark.slow) for one in (OFFLOADED, "trtllm", *NAMES)),
]
#: Options of these, and of every engine's.
OPTIONS: dict[str, dict[str, Any]] = {
    OFFLOADED: {"device_map": "auto", "max_memory": '{"cpu": "100KB"}'},
    "vllm": {"engine_options": {"enforce_eager": True}},
    "deepspeed": {"tensor_parallel_degree": 2, "device": "cpu", "engine_options": {"threads": 1}},
}
#: A token that makes the fakes' generations fail.
FAILING = 99
#: So that a sequence is not over before it can be cancelled.
STEP_MS = 2


@pytest.fixture(scope="module", params=ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    engine_name: str = request.param
    return engine_name


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """vLLM's cache is no larger than it need be: other tests run beside these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        yield


@pytest.fixture(scope="module", autouse=True)
def tensorrt_llm(name: str) -> Iterator[None]:
    """A package that stands for TensorRT-LLM, which needs a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "trtllm":
            pretend(patch)
        yield


@pytest.fixture(scope="module")
def checkpoint(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if name in NAMES:
        if reason := lacking(name) or ("" if weights().is_dir() else "SmolLM2 is not here: `make weights` fetches it"):
            pytest.skip(reason)
        return weights()
    path = tmp_path_factory.mktemp("model")
    return build_checkpoint(path, "llama") if name in ("auto", OFFLOADED, "trtllm") else path


async def opened(name: str, checkpoint: Path, listener: Listener, **options: Any) -> EngineClient:
    properties = {"fake_failing_token": str(FAILING), "fake_step_ms": str(STEP_MS)}
    if name in NAMES:
        properties = {"seed": "0"}
        options |= {"cache_dir": str(cache_dir()), "dtype": "fp32"}
    options |= OPTIONS.get(name, {})
    return await listener.open(checkpoint, properties, rolling_batch="auto" if name == OFFLOADED else name, **options)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(name: str, checkpoint: Path) -> AsyncIterator[tuple[EngineClient, Listener]]:
    listener = Listener()
    client = await opened(name, checkpoint, listener, max_rolling_batch_size=3)
    yield client, listener
    await client.close()
    assert not psutil.pid_exists(client.pid)
    assert listener.deaths == []


async def test_an_engine_reports_its_limits(name: str, engine: tuple[EngineClient, Listener]) -> None:
    client, _ = engine
    assert (client.limits.max_model_len, client.limits.max_batch_size) == (128, 3)
    assert client.limits.info.runner == {"auto": "native", OFFLOADED: "torch-paged"}.get(name, name)


async def test_events_of_many_sequences_reach_their_own_sinks(engine: tuple[EngineClient, Listener]) -> None:
    client, listener = engine
    sinks = [Sink() for _ in range(7)]
    for i, sink in enumerate(sinks):
        client.submit(SequenceRequest([5 + i] * 9, SamplingParams(max_new_tokens=3 + i, ignore_eos=True)), sink)
    for i, sink in enumerate(sinks):
        events = await sink.end()
        assert len(events) == 3 + i
        assert [e.finish for e in events] == [None] * (2 + i) + [FinishReason.LENGTH]
        assert len({e.request_id for e in events}) == 1
    assert max(stats.running for stats in listener.stats) <= 3
    await idle(client, listener)


async def idle(client: EngineClient, listener: Listener) -> None:
    """The gauges are back at nothing, at the latest with the answer to a further message."""
    sink = Sink()
    client.submit(SequenceRequest([5], SamplingParams(max_new_tokens=1)), sink)
    await sink.end()
    client.cancel(client.submit(SequenceRequest([5], SamplingParams(max_new_tokens=1)), Sink()))
    async with asyncio.timeout(10):
        while (listener.stats[-1].running, listener.stats[-1].waiting, listener.stats[-1].kv_blocks_used) != (0, 0, 0):
            await listener.told.wait()


async def test_the_context_ends_what_max_new_tokens_does_not(engine: tuple[EngineClient, Listener]) -> None:
    client, _ = engine
    sink = Sink()
    client.submit(SequenceRequest([5] * 120, SamplingParams(max_new_tokens=1000, ignore_eos=True)), sink)
    events = await sink.end()
    assert (len(events), events[-1].finish) == (8, FinishReason.LENGTH)


async def test_a_stop_token_ends_a_sequence(engine: tuple[EngineClient, Listener]) -> None:
    client, _ = engine
    first, sink = Sink(), Sink()
    client.submit(SequenceRequest([7, 8, 9], SamplingParams(max_new_tokens=4, ignore_eos=True)), first)
    token = (await first.end())[0].token_id
    client.submit(SequenceRequest([7, 8, 9], SamplingParams(max_new_tokens=4, stop_token_ids=(token,))), sink)
    events = await sink.end()
    assert [(event.token_id, event.finish) for event in events] == [(token, FinishReason.STOP)]


async def test_a_cancelled_sequence_is_silent_and_gone(engine: tuple[EngineClient, Listener]) -> None:
    client, listener = engine
    sink, witness = Sink(), Sink()
    request_id = client.submit(SequenceRequest([5] * 9, SamplingParams(max_new_tokens=110, ignore_eos=True)), sink)
    await sink.begun.wait()
    client.cancel(request_id)
    client.cancel(request_id)
    seen = len(sink.events)
    client.submit(SequenceRequest([6] * 9, SamplingParams(max_new_tokens=2, ignore_eos=True)), witness)
    await witness.end()
    assert len(sink.events) == seen
    await idle(client, listener)


async def test_a_prompt_too_long_fails_alone(engine: tuple[EngineClient, Listener]) -> None:
    client, _ = engine
    sink, witness = Sink(), Sink()
    client.submit(SequenceRequest([5] * 128, SamplingParams(max_new_tokens=1)), sink)
    client.submit(SequenceRequest([6] * 9, SamplingParams(max_new_tokens=2, ignore_eos=True)), witness)
    event = (await sink.end())[0]
    assert (event.error is not None, event.error_kind) == (True, "parameter")
    assert len(await witness.end()) == 2


async def test_a_failing_sequence_costs_no_other_one_anything(name: str, engine: tuple[EngineClient, Listener]) -> None:
    if "Fake" not in name:
        pytest.skip("no token makes it fail")
    client, listener = engine
    sink, witness = Sink(), Sink()
    client.submit(SequenceRequest([6] * 9, SamplingParams(max_new_tokens=20, ignore_eos=True)), witness)
    client.submit(SequenceRequest([FAILING] * 3, SamplingParams(max_new_tokens=5)), sink)
    assert f"token {FAILING} makes" in str((await sink.end())[-1].error)
    events = await witness.end()
    assert (len(events), events[-1].error) == (20, None)
    await idle(client, listener)


async def test_a_killed_engine_ends_what_was_in_flight(name: str, checkpoint: Path) -> None:
    listener = Listener()
    longest = (
        128 if name in ("auto", OFFLOADED, "trtllm", *NAMES) else 1 << 20
    )  # an echo would be over before it is killed
    client = await opened(name, checkpoint, listener, max_model_len=longest)
    sinks = [Sink(), Sink()]
    for sink in sinks:
        client.submit(SequenceRequest([5] * 9, SamplingParams(max_new_tokens=longest - 10, ignore_eos=True)), sink)
    await sinks[0].begun.wait()
    own = psutil.Process(client.pid).children(recursive=True)
    os.kill(client.pid, signal.SIGKILL)
    for sink in sinks:
        last = (await sink.end())[-1]
        assert (last.error, last.error_kind) == ("the engine process ended unexpectedly", "worker_died")
    await listener.died.wait()
    late = Sink()
    client.submit(SequenceRequest([5], SamplingParams(max_new_tokens=1)), late)
    assert (await late.end())[-1].error == "the engine process ended unexpectedly"
    await client.close()
    assert len(listener.deaths) == 1
    for process in own:  # a server kills what is left of a worker's process group, which ends with its engine
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


async def test_an_engine_closes_with_sequences_in_flight(name: str, checkpoint: Path) -> None:
    listener = Listener()
    client = await opened(name, checkpoint, listener)
    sink = Sink()
    client.submit(SequenceRequest([5] * 9, SamplingParams(max_new_tokens=118, ignore_eos=True)), sink)
    await sink.begun.wait()
    await client.close()
    assert listener.deaths == []
    assert not psutil.pid_exists(client.pid)
