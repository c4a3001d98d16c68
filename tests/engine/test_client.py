"""The engine as a spawned process behind its client: real sockets, real signals. See also contract/test_engines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from djl_python.config import ModelConfig, Options, ServingSettings
from djl_python.core.errors import ConfigError, ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine import process as process_module
from djl_python.engine.client import EngineClient
from djl_python.engine.process import common_settings
from djl_python.testing import FAKE_ENGINE, write_byte_tokenizer
from tests.checkpoints import build_checkpoint
from tests.engines import Listener, Sink
from tests.processes import until_ended

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoint: Path) -> AsyncIterator[tuple[EngineClient, Listener]]:
    listener = Listener()
    client = await listener.open(checkpoint, max_rolling_batch_size=3)
    yield client, listener
    await client.close()
    assert not psutil.pid_exists(client.pid)
    assert listener.deaths == []


async def test_loading_tells_its_progress_and_its_limits(engine: tuple[EngineClient, Listener]) -> None:
    client, listener = engine
    assert ("loading weights", 1) in {(what, done) for what, done, _ in listener.progress}
    assert (client.limits.max_model_len, client.limits.max_batch_size) == (128, 3)
    assert "LlamaForCausalLM" in client.limits.description


async def test_how_many_sequences_are_generated_at_once() -> None:
    for rolling_batch, expected in (("auto", 32), ("disable", 4)):
        config = ModelConfig(
            name="m", option=Options(rolling_batch=rolling_batch), serving=ServingSettings(batch_size=4)
        )
        assert common_settings(config, Path("m")).max_batch_size == expected


@pytest.mark.parametrize("asked", [False, True])
async def test_a_stopped_engine_is_killed(checkpoint: Path, asked: bool) -> None:
    listener, sink = Listener(), Sink()
    client = await listener.open(checkpoint, heartbeat_timeout_s=0.5)
    if asked:
        client.submit(SequenceRequest([5, 6, 7], SamplingParams(max_new_tokens=100, ignore_eos=True)), sink)
        await listener.told.wait()
    os.kill(client.pid, signal.SIGSTOP)
    async with asyncio.timeout(10):
        await listener.died.wait()
        assert not asked or (await sink.end())[-1].error_kind == "worker_died"
    assert listener.answers == []  # it was not silent for longer than it takes to be found halted
    await client.close()


@pytest.mark.parametrize(("setting", "answers"), [("fake_step_ms", [False, True]), ("fake_computing_ms", [])])
async def test_an_engine_does_not_answer_while_it_neither_beats_nor_computes(
    tmp_path: Path, setting: str, answers: list[bool]
) -> None:
    write_byte_tokenizer(tmp_path)
    listener, sink = Listener(), Sink()
    client = await listener.open(tmp_path, {setting: "3000"}, rolling_batch=FAKE_ENGINE, heartbeat_timeout_s=1.2)
    client.submit(SequenceRequest([5, 6, 7], SamplingParams(max_new_tokens=1, ignore_eos=True)), sink)
    async with asyncio.timeout(10):
        assert len(await sink.end()) == 1
        while len(listener.answers) < len(answers):
            await asyncio.sleep(0.01)
    assert (listener.answers, listener.deaths) == (answers, [])
    await client.close()


async def test_a_frozen_engine_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where whoever waited for it has given up."""
    monkeypatch.setattr(process_module, "SILENCE_S", 0.5)
    write_byte_tokenizer(tmp_path)
    listener = Listener()
    client = await listener.open(
        tmp_path, {"fake_step_ms": "60000"}, rolling_batch=FAKE_ENGINE, predict_timeout=0.1, heartbeat_timeout_s=0.2
    )
    await asyncio.sleep(0.7)  # it beats
    assert not listener.deaths
    request_id = client.submit(SequenceRequest([5, 6, 7], SamplingParams(max_new_tokens=3)), Sink())
    async with asyncio.timeout(10):
        while not listener.answers:
            await asyncio.sleep(0.01)
        client.cancel(request_id)
        await listener.died.wait()
    await client.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"rolling_batch": "nonsense"},
            "option.rolling_batch 'nonsense' is not known; expected one of auto, deepspeed, echo, trtllm, "
            "vllm, or module:Class",
        ),
        ({"rolling_batch": "broken_engine:Engine"}, "ZeroDivisionError: division by zero"),
        (
            {"tensor_parallel_degree": 3, "device": "cpu"},
            "option.tensor_parallel_degree=3: it does not divide num_attention_heads",
        ),
        ({"max_model_len": 4096}, "option.max_model_len=4096 is more than the checkpoint's context of 256"),
    ],
)
async def test_an_engine_that_does_not_open_says_why(
    options: dict[str, Any], reason: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_engine.py").write_text("1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises((ModelLoadError, ConfigError)) as caught:
        await Listener().open(checkpoint, **options)
    assert reason in caught.value.message


async def test_an_engine_that_is_not_waited_for_any_more_is_gone_at_once(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is not asked to stop: while it loads, it hears nothing."""
    pid = tmp_path / "pid"
    (tmp_path / "slow_engine.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(pid)!r}).symlink_to(str(os.getpid()))\ntime.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(process_module, "CLOSE_TIMEOUT_S", 60.0)
    opening = asyncio.ensure_future(Listener().open(checkpoint, rolling_batch="slow_engine:Engine"))
    async with asyncio.timeout(30):
        while not pid.is_symlink():
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.wait([opening])
    assert opening.cancelled()
    assert not psutil.pid_exists(int(os.readlink(pid)))


@pytest.mark.slow
async def test_the_engine_does_not_outlive_its_worker(checkpoint: Path, tmp_path: Path) -> None:
    """A worker that is killed takes its engine with it, in the middle of a sequence."""
    script = tmp_path / "worker.py"
    script.write_text(f"""
import asyncio, pathlib
from tests.engines import Listener, Sink
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams

async def main():
    client = await Listener().open(pathlib.Path({str(checkpoint)!r}))
    sink = Sink()
    client.submit(SequenceRequest([5] * 9, SamplingParams(max_new_tokens=118, ignore_eos=True)), sink)
    await sink.begun.wait()
    print(client.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
""")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert worker.stdout is not None
    engine = psutil.Process(int(await worker.stdout.readline()))
    worker.kill()
    await worker.wait()
    await until_ended(engine)


OWN_ENGINE = """
from djl_python.core.metrics import MetricFamily, MetricSample
from djl_python.testing import FakeAsyncEngine

class Own(FakeAsyncEngine):
    named = ""

    async def generate(self, request):
        self.named = request.adapter
        async for event in super().generate(request):
            yield event

    def metrics(self):
        return [MetricFamily("own:x", "gauge", "X.", [MetricSample("own:x", {"adapter": self.named}, 1.0)])]
"""


async def test_an_engine_is_told_of_adapters_and_tells_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN_ENGINE)
    listener = Listener()
    client = await listener.open(tmp_path, rolling_batch="own:Own")
    try:
        async with asyncio.timeout(60):
            sink = Sink()
            client.submit(SequenceRequest([5] * 9, SamplingParams(max_new_tokens=2), adapter="tom"), sink)
            await sink.end()
            await listener.measured.wait()
        assert listener.metrics[0].samples[0].labels == {"adapter": "tom"}
    finally:
        await client.close()
