"""A really spawned server: start, ready block, signals, drain, and what is left behind."""

import asyncio
import contextlib
import os
import re
import resource
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from djl_python.core.errors import ConfigError
from djl_python.server.lifecycle import Server
from tests.processes import has_ended, until_ended
from tests.server.harness import FAKE_WORKER, model_config, until

ModelDir = Callable[..., Path]


@pytest.fixture
def model_dir(tmp_path: Path) -> ModelDir:
    """Makes model directories whose worker is the fake one."""
    python = tmp_path / "fake-python"
    real = f'[ "$1" = -c ] && exec {sys.executable} "$@"'  # as an interpreter it is asked what it has
    python.write_text(f'#!/bin/sh\n{real}\nexec {sys.executable} -P {FAKE_WORKER} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)

    def make(name: str = "fake", **properties: object) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        (directory / "model.py").write_text("")
        lines = [f"option.pythonExecutable={python}", *(f"{key}={value}" for key, value in properties.items())]
        (directory / "serving.properties").write_text("\n".join(lines))
        return directory

    return make


@dataclass
class Spawned:
    process: asyncio.subprocess.Process
    url: str = ""
    output: str = ""

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def client(self) -> httpx.AsyncClient:
        _, unix, path = self.url.partition("unix:")
        if unix:
            return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://unix", timeout=20)
        return httpx.AsyncClient(base_url=self.url, timeout=20, verify=False)

    async def post(self, **order: object) -> httpx.Response:
        async with self.client() as client:
            return await client.post("/invocations", json=order)

    async def in_flight(self, number: int) -> None:
        """Wait until so many requests are with the worker of the model "fake"."""
        await self._shows("/metrics", lambda text: f'in_flight_requests{{model="fake",version=""}} {number}.0' in text)

    async def forgotten(self, model: str) -> None:
        """Wait until a model is none any more."""
        await self._shows("/ping", lambda text: model not in text)

    async def _shows(self, path: str, condition: Callable[[str], bool]) -> None:
        async with self.client() as client, asyncio.timeout(20):
            while not condition((await client.get(path)).text):
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def spawned(*arguments: object, ready: bool = True, **environment: str) -> AsyncIterator[Spawned]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "djl_python", "-p", "0", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    server = Spawned(process)
    assert process.stdout is not None
    reading = asyncio.create_task(_read(server, process.stdout))
    try:
        if ready:
            await until(lambda: "curl " in server.output or process.returncode is not None, timeout_s=30)
            match = re.search(r"ready at (\S+)", server.output)
            assert match, server.output
            server.url = match[1]
        yield server
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def _read(server: Spawned, stream: asyncio.StreamReader) -> None:
    while data := await stream.read(65536):
        server.output += data.decode()


async def test_the_ready_block_tells_a_command_that_works(model_dir: ModelDir) -> None:
    async with spawned(model_dir()) as server:
        assert "model fake: ready after" in server.output
        curl = re.search(r"curl (\S+)", server.output)
        assert curl and curl[1] == f"{server.url}/invocations"
        assert (await server.post(do="echo")).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0
    line = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO fake \[[0-9a-f]{32}\] 127.0.0.1 "POST /invocations" 200 \d+ ms'
    assert re.search(f"^{line}$", server.output, re.M)


async def test_sigterm_lets_running_requests_finish_and_takes_no_new_ones(model_dir: ModelDir) -> None:
    async with spawned(model_dir()) as server:
        workers = server.workers()
        slow = asyncio.create_task(server.post(do="stream", n=10, gap_s=0.1))
        await server.in_flight(1)
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{server.url}/metrics")).status_code == 200
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: "shutting down: 1 requests" in server.output)
            refused = await client.post(f"{server.url}/invocations", json={"do": "echo"})  # on the connection it kept
            assert refused.status_code == 503 and refused.headers["connection"] == "close"
            with pytest.raises(httpx.ConnectError):
                await server.post(do="echo")
        answer = await slow
        assert answer.status_code == 200 and len(answer.text.splitlines()) == 10
        assert await server.process.wait() == 0
    assert all(map(has_ended, workers))


async def test_sigterm_lets_requests_of_a_model_that_is_being_unloaded_finish_too(model_dir: ModelDir) -> None:
    async with spawned(model_dir()) as server:
        workers = server.workers()
        slow = asyncio.create_task(server.post(do="echo", sleep_s=1))
        await server.in_flight(1)
        async with httpx.AsyncClient(base_url=server.url) as client:
            unloading = asyncio.create_task(client.post("/v2/repository/models/fake/unload"))
            await server.forgotten("fake")
            server.process.send_signal(signal.SIGTERM)
            assert (await slow).status_code == 200
            assert (await unloading).status_code == 200
        assert await server.process.wait() == 0
        assert "did not finish" not in server.output
    assert all(map(has_ended, workers))


async def test_sigterm_lets_requests_finish_while_another_model_loads(
    model_dir: ModelDir, unused_tcp_port: int
) -> None:
    arguments = (model_dir(), model_dir("slow", load="hang"), "-p", unused_tcp_port)
    async with spawned(*arguments, ready=False, SERVING_WAIT_MODEL_LOADING="false") as server:
        server.url = f"http://127.0.0.1:{unused_tcp_port}"
        await until(lambda: "model fake: ready" in server.output, timeout_s=30)
        async with server.client() as client:
            running = asyncio.create_task(client.post("/predictions/fake", json={"do": "stream", "n": 5, "gap_s": 0.1}))
            await server.in_flight(1)
            server.process.send_signal(signal.SIGTERM)
            answer = await running
        assert await server.process.wait() == 0
        assert answer.status_code == 200 and len(answer.text.splitlines()) == 5


async def test_requests_that_outlast_the_drain_get_an_error(model_dir: ModelDir) -> None:
    async with spawned(model_dir(), SERVING_DRAIN_TIMEOUT="0.3") as server:
        hanging = asyncio.create_task(server.post(do="hang"))
        streaming = asyncio.create_task(server.post(do="stream", n=1000, gap_s=0.05))
        await server.in_flight(2)
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0
        assert (await hanging).status_code == 503
        assert "shutting down" in (await streaming).text.splitlines()[-1]


async def test_sigterm_is_noticed_before_the_sockets_close(model_dir: ModelDir) -> None:
    async with spawned(model_dir(), SERVING_DRAIN_DELAY="60") as server:
        streaming = asyncio.create_task(server.post(do="stream", n=5, gap_s=0.1))
        await server.in_flight(1)
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: "new requests get 503 for 60 s (drain_delay)" in server.output)
        refused = await server.post(do="echo")  # on a connection of its own
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        statuses = {}
        async with server.client() as client:
            for path in ("/health", "/v2/health/ready", "/ping", "/v2/health/live", "/metrics"):
                statuses[path] = (await client.get(path)).status_code
        assert list(statuses.values()) == [503, 503, 503, 200, 200]
        answer = await streaming
        assert answer.status_code == 200 and len(answer.text.splitlines()) == 5
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize(("number", "delay_s"), [(signal.SIGTERM, "0.3"), (signal.SIGINT, "60")])
async def test_a_server_ends_after_its_delay_and_at_once_in_a_terminal(
    model_dir: ModelDir, number: signal.Signals, delay_s: str
) -> None:
    async with spawned(model_dir(), SERVING_DRAIN_DELAY=delay_s) as server:
        server.process.send_signal(number)
        assert await asyncio.wait_for(server.process.wait(), 20) == 0


async def test_silent_connections_make_room_and_leave_descriptors_for_workers_that_start_again(
    model_dir: ModelDir,
) -> None:
    async with spawned(model_dir()) as server, server.client() as client, contextlib.AsyncExitStack() as idle:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (128, 128))
        address = httpx.URL(server.url)
        readers = []
        for _ in range(160):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            readers.append(reader)
            idle.callback(writer.close)
        assert await asyncio.wait_for(readers[0].read(), 10) == b""  # the one that has been silent for longest
        assert (await client.get("/ping")).status_code == 200
        (worker,) = server.workers()
        worker.kill()
        await until(lambda: "it starts again now" in server.output)
        assert (await client.post("/invocations", json={"do": "echo"})).status_code == 200
        assert "did not load" not in server.output
        assert "Too many open files" not in server.output
        assert not readers[-1].at_eof()


@pytest.mark.parametrize("unloading", [False, True])
async def test_a_second_signal_ends_at_once(model_dir: ModelDir, unloading: bool) -> None:
    async with spawned(model_dir()) as server, httpx.AsyncClient(base_url=server.url) as client:
        workers = server.workers()
        hanging = asyncio.create_task(server.post(do="hang"))
        await server.in_flight(1)
        if unloading:
            retiring = asyncio.create_task(client.post("/v2/repository/models/fake/unload"))
            await server.forgotten("fake")
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: "shutting down" in server.output)
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 128 + signal.SIGTERM
        for asked in (hanging, retiring) if unloading else (hanging,):
            with pytest.raises(httpx.HTTPError):
                await asked
    await until_ended(*workers)


async def test_killing_the_front_end_leaves_no_orphans(model_dir: ModelDir) -> None:
    async with spawned(model_dir(minWorkers=2)) as server:
        workers = server.workers()
        assert len(workers) == 2
        server.process.kill()
        await server.process.wait()
        await until_ended(*workers)


async def test_a_model_that_fails_is_told_in_one_block_and_the_server_exits_with_1(model_dir: ModelDir) -> None:
    async with spawned(model_dir(load="fail"), ready=False) as server:
        assert await server.process.wait() == 1
    assert re.search(
        r"^model fake failed to load \(.*/fake\):\n  model.py:3: in handle\n  ZeroDivisionError: \"oops\"\n",
        server.output,
        re.M,
    )
    assert "Traceback" not in server.output


async def test_of_several_models_the_others_serve(model_dir: ModelDir) -> None:
    async with spawned(model_dir("good"), model_dir("bad", load="fail")) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            ping = await client.get("/ping")
            assert ping.status_code == 500
            assert ping.json() == {"good": {"status": "Healthy"}, "bad": {"status": "FAILED"}}
            assert (await client.post("/predictions/good", json={"do": "echo"})).status_code == 200
            assert (await client.post("/predictions/bad", json={"do": "echo"})).status_code == 503
        assert f"curl {server.url}/predictions/good" in server.output
        assert f"{server.url}/predictions/bad" not in server.output
        server.process.send_signal(signal.SIGINT)
        assert await server.process.wait() == 0


async def test_a_model_whose_configuration_is_wrong_fails_and_the_others_serve(model_dir: ModelDir) -> None:
    async with spawned(model_dir("good"), model_dir("bad", **{"option.dtype": "fp99"})) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            ping = (await client.get("/ping")).json()
            assert ping == {"good": {"status": "Healthy"}, "bad": {"status": "FAILED"}}
            assert (await client.post("/predictions/good", json={"do": "echo"})).status_code == 200
            answer = await client.post("/predictions/bad", json={"do": "echo"})
            assert answer.status_code == 503 and "model 'bad' has failed" in answer.text
        assert re.search(
            r"^model bad failed to load \(.*/bad\):\n  .*serving.properties:\d+: option.dtype=fp99", server.output, re.M
        )


async def test_the_port_may_open_before_the_models_are_loaded(model_dir: ModelDir, unused_tcp_port: int) -> None:
    model = model_dir(load="later")
    arguments = (model, "-p", str(unused_tcp_port))
    async with spawned(*arguments, ready=False, SERVING_WAIT_MODEL_LOADING="false") as server:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}") as client:
            statuses = []
            deadline = time.monotonic() + 20
            while "Healthy" not in statuses and time.monotonic() < deadline:
                with contextlib.suppress(httpx.ConnectError):
                    statuses.append((await client.get("/ping")).json()["fake"]["status"])
                await asyncio.sleep(0.02)
        assert "PENDING" in statuses and statuses[-1] == "Healthy"
        assert "reading weights 1/2" in server.output


async def test_a_unix_socket_goes_to_a_successor_while_its_server_drains(model_dir: ModelDir, tmp_path: Path) -> None:
    path, model = tmp_path / "serving.sock", model_dir()
    address = f"unix:{path}"
    async with spawned(model, SERVING_INFERENCE_ADDRESS=address) as old:
        async with spawned(model, ready=False, SERVING_INFERENCE_ADDRESS=address) as refused:
            assert await refused.process.wait() != 0
        assert f"{address} is in use by another process" in refused.output
        slow = asyncio.create_task(old.post(do="hang"))
        await old.in_flight(1)
        old.process.send_signal(signal.SIGTERM)
        await until(lambda: not path.exists())
        async with spawned(model, SERVING_INFERENCE_ADDRESS=address) as new:
            slow.cancel()  # the last request of the old one
            assert await old.process.wait() == 0
            assert (await new.post(do="echo")).status_code == 200
            new.process.send_signal(signal.SIGTERM)
            assert await new.process.wait() == 0
    assert not path.exists()


async def test_a_port_that_is_taken_is_told_before_models_load(model_dir: ModelDir) -> None:
    with_socket = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = with_socket.sockets[0].getsockname()[1]
    async with spawned(model_dir(), "-p", port, ready=False) as server:
        assert await server.process.wait() == 1
    assert server.output == (
        f"djl-serving: http://127.0.0.1:{port} is in use by another process; choose another port with -p\n"
    )
    with_socket.close()
    await with_socket.wait_closed()


async def test_a_default_model_must_exist() -> None:
    from djl_python.config import ModelSpec, ServerConfig

    with pytest.raises(ConfigError, match="default_model=x: no such model; there is m"):
        Server(ServerConfig(default_model="x"), {ModelSpec(name="m", url="/m"): model_config()})


async def test_the_real_worker_serves_a_model_py(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "from djl_python import Input, Output\n\n\n"
        "def handle(inputs: Input) -> Output | None:\n"
        "    if inputs.is_empty():\n        return None\n"
        "    order = inputs.get_as_json()\n"
        "    if 'fail' in order:\n        raise ValueError('boom')\n"
        "    if 'words' in order:\n        return Output().add_stream_content(iter(order['words']))\n"
        "    return Output().add_as_json(order)\n"
    )
    async with spawned(f"words={tmp_path}") as server:
        assert (await server.post(a=1)).json() == {"a": 1}
        assert (await server.post(words=["a", "b"])).text == '{"outputs":"a"}\n{"outputs":"b"}\n'
        failed = await server.post(fail=True)
        assert failed.status_code == 424 and "ValueError: boom" in failed.text
        (worker,) = server.workers()
        worker.kill()
        await until(lambda: "it starts again now" in server.output)
        assert (await server.post(a=2)).json() == {"a": 2}  # waited for the new worker
        workers = server.workers()
        server.process.kill()
        await server.process.wait()
        await until_ended(*workers)


async def test_models_are_managed_at_an_address_of_their_own(model_dir: ModelDir, unused_tcp_port: int) -> None:
    directory, address = model_dir(), f"http://127.0.0.1:{unused_tcp_port}"
    async with spawned("-m", "NONE", SERVING_MANAGEMENT_ADDRESS=address, ready=False) as server:
        await until(lambda: "models are managed at" in server.output, timeout_s=30)
        match = re.search(r"ready at (\S+)", server.output)
        assert match and f"models are managed at {address}\n" in server.output
        server.url = match[1]
        async with httpx.AsyncClient(base_url=address, timeout=20, verify=False) as manager, server.client() as client:
            assert (await client.post(f"/models?url={directory}")).status_code == 403
            assert (await manager.post(f"/models?url={directory}")).status_code == 200
            assert (await server.post(do="echo")).status_code == 200
            elsewhere = await manager.post("/invocations", json={})
            assert elsewhere.status_code == 404 and "is at inference_address" in elsewhere.text
            for path in ("/ping", "/metrics", "/openapi.json"):
                assert (await manager.get(path)).status_code == (await client.get(path)).status_code == 200
            refused = await client.post("/v2/repository/models/fake/unload")
            assert refused.status_code == 403 and "management_address" in refused.json()["error"]
            assert (await manager.post("/v2/repository/models/fake/unload")).status_code == 200
        server.process.terminate()
        assert await server.process.wait() == 0


async def test_management_at_a_unix_socket_or_at_a_port_that_is_taken(
    model_dir: ModelDir, tmp_path: Path, unused_tcp_port: int
) -> None:
    directory, path = model_dir(), tmp_path / "manage"
    environment: dict[str, Any] = {"SERVING_MANAGEMENT_ADDRESS": f"unix:{path}"}
    async with spawned("-m", directory, ready=True, **environment) as server:
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://any", timeout=20) as manager:
            assert (await manager.get("/models")).json()["models"][0]["status"] == "READY"
        async with spawned("-m", directory, ready=False, **environment) as other:
            assert await other.process.wait() == 1
        assert "in use by another process" in other.output
        server.process.terminate()
        assert await server.process.wait() == 0
    assert not path.exists()


async def test_every_client_manages_where_both_addresses_are_the_same(
    model_dir: ModelDir, unused_tcp_port: int
) -> None:
    """As DJL's container has it."""
    address = f"http://0.0.0.0:{unused_tcp_port}"
    environment: dict[str, Any] = {"SERVING_INFERENCE_ADDRESS": address, "SERVING_MANAGEMENT_ADDRESS": address}
    async with spawned("-m", model_dir(), **environment) as server, server.client() as client:
        headers = {"Host": "models.example", "X-Forwarded-For": "10.0.0.1"}
        assert (await client.get("/models", headers=headers)).status_code == 200
