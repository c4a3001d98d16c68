import asyncio
import os
import resource
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from djl_python.config import ModelConfig, Runtime
from djl_python.core.errors import MachineLoadError, ModelLoadError
from djl_python.ipc.channel import Channel
from djl_python.ipc.protocol import AnyMessage, BodyChunk, Call, Load
from djl_python.server.models.local_processes import LocalProcesses
from djl_python.server.models.placement import ReplicaSpec, Started
from tests.processes import until_ended
from tests.server.harness import FAKE_MODULE, model_config


async def started(config: ModelConfig) -> Started:
    return await LocalProcesses(FAKE_MODULE).start(ReplicaSpec("0", config))


async def test_the_end_of_the_socket_is_the_end_of_the_worker() -> None:
    worker = await started(model_config())
    worker.connection.close()
    assert await worker.exited == "exited with status 0"
    worker.kill()  # has no effect


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "was killed by SIGKILL (out of memory?)"),
        (signal.SIGTERM, "was killed by SIGTERM"),
        (signal.SIGRTMIN + 1, f"was killed by signal {signal.SIGRTMIN + 1:d}"),
    ],
)
async def test_a_killed_workers_signal_is_reported(number: int, how: str) -> None:
    worker = await started(model_config())
    assert worker.pid is not None
    os.kill(worker.pid, number)
    assert await worker.exited == how
    worker.connection.close()


async def test_a_workers_children_end_with_it() -> None:
    worker = await started(model_config())
    answered: asyncio.Queue[list[AnyMessage]] = asyncio.Queue()
    channel = Channel(answered.put_nowait, lambda: None)
    await channel.attach(worker.connection)
    channel.send(Load(msgspec.msgpack.encode(model_config())))
    channel.send(Call(1, "lmi", "predict", "POST", "/", (), {"x-request-id": "1"}, b'{"do": "child"}'))
    data = b""
    while not data:
        messages = await asyncio.wait_for(answered.get(), 10)
        data = b"".join(message.data for message in messages if isinstance(message, BodyChunk))
    child = psutil.Process(msgspec.json.decode(data)["pid"])
    worker.kill()
    assert await worker.exited == "was killed by SIGKILL (out of memory?)"
    await until_ended(child)
    channel.close()


@pytest.mark.parametrize("missing", ["interpreter", "directory"])
async def test_a_missing_interpreter_or_directory_is_named(tmp_path: Path, missing: str) -> None:
    path = str(tmp_path / missing)
    if missing == "interpreter":
        config = msgspec.structs.replace(model_config(), path=str(tmp_path), runtime=Runtime(executable=path))
    else:
        config = msgspec.structs.replace(model_config(), path=path)
    with pytest.raises(ModelLoadError) as raised:
        await started(config)
    assert raised.value.message == f"{path}: No such file or directory"


async def test_missing_file_descriptors_are_told_apart_from_a_wrong_interpreter() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        with pytest.raises(MachineLoadError, match="no process can be started: Too many open files"):
            await started(model_config())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
