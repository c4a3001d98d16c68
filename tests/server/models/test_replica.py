import asyncio
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from djl_python.config import ModelConfig, Runtime
from djl_python.ipc.framing import FrameWriter
from djl_python.ipc.protocol import AnyMessage, Load, Report, Status
from djl_python.server.metrics.metrics import Metrics
from djl_python.server.models.health import Health
from djl_python.server.models.placement import ReplicaSpec, Started, placement
from djl_python.server.models.replica import WorkerState
from djl_python.server.models.scaling.scaling import worker_configs
from djl_python.server.models.served_model import ServedModel
from djl_python.server.models.supervision import restarts, running_worker
from tests.processes import has_ended
from tests.server.harness import Site, model_config, running, served, until, wait_ready
from tests.server.models.pool.test_pool import Recorder, call


def gone(pid: int) -> bool:
    """Neither running nor a zombie."""
    return not psutil.pid_exists(pid)


async def settled(config: ModelConfig, **options: Any) -> ServedModel:
    model = served(config, **options)
    model.start()
    await wait_ready(model)
    return model


async def replaced(site: Site, number: int) -> None:
    """Send the worker a signal that kills it, and wait for its successor."""
    first = site.pid
    os.kill(first, number)
    await until(lambda: site.model.workers.always[0].pid not in (first, None) and site.model.ready)


async def test_a_killed_worker_comes_back_at_once_and_leaves_nothing_behind() -> None:
    async with running() as site:
        first = site.pid
        child = (await site.post(do="child")).json()["pid"]
        os.kill(first, signal.SIGKILL)
        await until(lambda: site.model.workers.always[0].pid not in (first, None) and site.model.ready)
        assert (await site.post(do="echo")).json()["pid"] == site.pid != first
        await until(lambda: gone(first) and has_ended(child))
        assert await site.metric("djl_worker_restarts_total") == 1


async def test_a_model_that_finds_its_gpu_no_more_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    device = tmp_path / "device"
    device.write_text("cuda:0")
    async with running(model_config(properties={"runner": "torch-paged", "device_file": str(device)})) as site:
        await replaced(site, signal.SIGKILL)
        assert "found no GPU" not in caplog.text
        device.write_text("cpu")
        await replaced(site, signal.SIGKILL)
        assert caplog.text.count("found no GPU: its model is on the CPU now") == 1
        await replaced(site, signal.SIGKILL)
        assert caplog.text.count("found no GPU") == 1


async def test_a_worker_that_starts_again_says_why_until_it_is_ready() -> None:
    async with running() as site:
        (worker,) = site.model.workers.always
        os.kill(site.pid, signal.SIGKILL)
        await until(lambda: "SIGKILL" in worker.setback)
        await until(lambda: site.model.ready)
        assert (worker.setback, worker.progress) == ("", None)


async def test_a_worker_that_may_not_load_yet_says_so() -> None:
    turns = asyncio.Semaphore(0)
    model = served(model_config(), turns=turns)
    model.start()
    (worker,) = model.workers.always
    await until(lambda: worker.progress is not None)
    assert worker.progress is not None and worker.progress.detail == "waiting until other workers have loaded"
    turns.release()
    await wait_ready(model)
    await model.stop()


async def test_calls_with_a_dead_worker_get_an_error_and_waiting_ones_the_next_worker() -> None:
    async with running(model_config(properties={"capacity": "1"})) as site:
        hanging = asyncio.create_task(site.post(do="hang"))
        await until(lambda: site.model.pool.busy == 1)
        waiting = asyncio.create_task(site.post(do="echo"))
        await until(lambda: site.model.pool.busy == 2)
        first = site.pid
        os.kill(first, signal.SIGKILL)
        answer = await hanging
        assert answer.status_code == 424
        assert "the worker that was answering this request has ended" in answer.text
        assert (await waiting).json()["pid"] != first


async def test_a_stream_whose_worker_dies_ends_with_the_dialects_error() -> None:
    async with (
        running() as site,
        site.client.stream("POST", "/invocations", json={"do": "stream", "n": 1000, "gap_s": 0.02}) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        os.kill(site.pid, signal.SIGKILL)
        rest = [line async for line in lines]  # would raise if the chunked body did not end properly
        assert answer.status_code == 200
        assert "the worker that was answering this request has ended" in rest[-1]


async def test_a_model_that_can_not_load_fails_with_the_workers_own_words() -> None:
    model = await settled(model_config(properties={"load": "fail"}))
    assert model.health is Health.FAILED
    assert "ZeroDivisionError" in model.failure
    await model.stop()


async def test_a_worker_that_dies_while_loading_is_tried_again_as_often_as_configured(tmp_path: Path) -> None:
    log = tmp_path / "pids"
    model = await settled(model_config(properties={"load": "crash", "pids": str(log)}, retry_threshold=1))
    assert model.failure == "the worker exited with status 3 while loading"
    pids = log.read_text().split()
    assert len(pids) == 2 and all(gone(int(pid)) for pid in pids)
    await model.stop()


async def test_loading_has_a_time_limit_that_names_its_setting() -> None:
    model = await settled(model_config(properties={"load": "hang"}, option={"model_loading_timeout": 0.5}))
    assert model.failure.startswith("loading took longer than 0.5 s: raise option.model_loading_timeout")
    await model.stop()


async def test_a_model_that_has_served_is_tried_again_until_it_serves_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(restarts, "BACKOFF_S", 0.01)
    monkeypatch.setattr(restarts, "BACKOFF_MAX_S", 0.02)
    marker = tmp_path / "marker"
    async with running(model_config(properties={"crash_after": str(marker)})) as site:
        (worker,) = site.model.workers.always
        os.kill(site.pid, signal.SIGKILL)
        await until(lambda: worker.restarts.failed == 4)
        assert (site.model.health, site.model.lost) == (Health.UNHEALTHY, False)
        waiting = asyncio.create_task(site.post(do="echo"))
        ping = await site.client.get("/ping")
        assert ping.status_code == 200
        assert re.fullmatch(r"workers do not start again, \d+ attempts have failed so far", ping.json()["m"]["message"])
        described = (await site.client.get("/models/m")).json()[0]["models"][0]
        assert described["status"] == "Unhealthy"
        assert described["setback"].endswith("so far: the worker exited with status 3 while loading")
        assert (await site.client.get("/v2/health/ready")).status_code == 503
        assert (await site.client.get("/v2/health/live")).status_code == 200
        marker.unlink()
        assert (await waiting).status_code == 200
        assert (await site.client.get("/ping")).json() == {"m": {"status": "Healthy"}}


async def test_a_model_whose_machine_lacks_memory_for_long_makes_the_server_not_live(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(restarts, "BACKOFF_S", 0.05)
    monkeypatch.setattr(restarts, "BACKOFF_MAX_S", 0.05)
    monkeypatch.setattr(restarts, "LOST_AFTER_S", 0.0)
    marker = tmp_path / "marker"
    async with running(model_config(properties={"crash_after": str(marker), "then": "no_memory"})) as site:
        assert (await site.client.get("/v2/health/live")).status_code == 200
        os.kill(site.pid, signal.SIGKILL)
        await until(lambda: site.model.lost)
        assert (await site.client.get("/v2/health/live")).status_code == 503
        assert (await site.client.get("/ping")).status_code == 500
        marker.unlink()  # it goes on trying
        await until(lambda: site.model.ready)
        assert (await site.client.get("/v2/health/live")).status_code == 200


@pytest.mark.parametrize("missing", ["interpreter", "directory"])
async def test_a_missing_interpreter_or_directory_fails_the_model(tmp_path: Path, missing: str) -> None:
    path = str(tmp_path / missing)
    if missing == "interpreter":
        config = msgspec.structs.replace(model_config(), path=str(tmp_path), runtime=Runtime(executable=path))
    else:
        config = msgspec.structs.replace(model_config(), path=path)
    model = ServedModel(config, Metrics().model("m", ""), placement())
    model.start()
    await wait_ready(model)
    assert model.failure == f"{path}: No such file or directory"
    await model.stop()


async def test_a_stopped_worker_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async with running(model_config(heartbeat_timeout_s=0.5)) as site:
        first = site.pid
        hanging = asyncio.create_task(site.post(do="hang"))
        stream = asyncio.create_task(site.post(do="stream", n=1000, gap_s=0.02))
        await until(lambda: site.model.pool.busy == 2)
        os.kill(first, signal.SIGSTOP)
        await until(lambda: not site.model.ready)
        assert (await site.client.get("/health")).status_code == 503
        answer = await hanging
        assert answer.status_code == 424 and "was stopped by a signal" in answer.text
        assert "was stopped by a signal" in (await stream).text.splitlines()[-1]
        assert (await site.post(do="echo")).json()["pid"] != first  # it waited
        await until(lambda: gone(first))
    assert "worker 0 was stopped by a signal (SIGSTOP, SIGTSTP) or by a debugger; it starts again now" in caplog.text


async def test_a_worker_that_is_stopped_while_it_loads_did_not_load(tmp_path: Path) -> None:
    log = tmp_path / "pids"
    model = served(model_config(properties={"load": "hang", "pids": str(log)}, heartbeat_timeout_s=0.2))
    model.start()
    await until(lambda: log.exists() and log.read_text().endswith("\n"))
    os.kill(int(log.read_text()), signal.SIGSTOP)
    await wait_ready(model)
    assert model.failure.startswith("the worker was stopped by a signal")
    await model.stop()


async def test_a_worker_whose_loop_is_held_gets_no_calls_until_it_beats_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(model_config(min_workers=2, heartbeat_timeout_s=0.3)) as site:
        frozen = asyncio.create_task(site.post(do="freeze", seconds=1.5))
        await until(lambda: WorkerState.UNRESPONSIVE in {one.state for one in site.model.workers.always})
        (held,) = [one for one in site.model.workers.always if one.state is WorkerState.UNRESPONSIVE]
        assert await site.metric('djl_workers{model="m",state="unresponsive"') == 1
        assert (await site.client.get("/ping")).json()["m"]["status"] == "Unhealthy"
        assert (await site.client.get("/v2/health/ready")).status_code == 200  # the other one answers
        answers = await asyncio.gather(*(site.post(do="echo") for _ in range(3)))
        assert held.pid not in {answer.json()["pid"] for answer in answers}
        assert (await frozen).json() == held.pid  # it has not been killed
        await until(lambda: site.model.health is Health.HEALTHY)
    assert "does not respond, and gets no requests until it does" in caplog.text
    assert "responds again" in caplog.text and "killed" not in caplog.text


async def test_a_worker_that_says_that_it_can_not_answer_is_not_ready() -> None:
    async with running(model_config(heartbeat_timeout_s=0.3)) as site:
        await site.post(do="answers", yes=False)
        await until(lambda: site.model.workers.always[0].state is WorkerState.UNRESPONSIVE)
        assert (await site.client.get("/health")).status_code == 503
        waiting = asyncio.create_task(site.post(do="echo"))
        await until(lambda: site.model.ready)  # which it tells a moment later
        assert (await waiting).status_code == 200


async def test_a_frozen_worker_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async with running(model_config(heartbeat_timeout_s=0.2, option={"predict_timeout": 0.3})) as site:
        first = site.pid
        answers = await asyncio.gather(site.post(do="freeze"), site.post(do="freeze"))
        for answer in answers:
            assert answer.status_code == 424 and "predict_timeout" in answer.text
        await until(lambda: gone(first) and site.model.ready)
        assert (await site.post(do="echo")).status_code == 200
        await replaced(site, signal.SIGTERM)
    assert "was killed by SIGTERM; it starts again" in caplog.text
    assert "longer than option.predict_timeout; it starts again now" in caplog.text
    assert "out of memory" not in caplog.text  # it was we who killed it


async def test_a_worker_that_gives_up_gets_no_more_calls_and_a_successor() -> None:
    async with running() as site:
        first = site.pid
        hanging = asyncio.create_task(site.post(do="hang"))
        await until(lambda: site.model.pool.busy == 1)
        await site.post(do="give_up")
        assert "gave up" in (await hanging).text
        assert (await site.post(do="echo")).json()["pid"] != first


async def test_a_worker_may_be_killed_by_a_signal_without_a_name(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as site:
        await replaced(site, signal.SIGRTMIN + 1)
    assert f"was killed by signal {signal.SIGRTMIN + 1:d}; it starts again now" in caplog.text


@pytest.mark.parametrize(
    ("short_life_s", "delays"), [(60.0, ["now", "in 0.01 s", "in 0.02 s", "in 0.03 s"]), (0.0, ["now"] * 4)]
)
async def test_a_worker_that_dies_again_soon_starts_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, short_life_s: float, delays: list[str]
) -> None:
    monkeypatch.setattr(restarts, "SHORT_LIFE_S", short_life_s)
    monkeypatch.setattr(restarts, "BACKOFF_S", 0.01)
    monkeypatch.setattr(restarts, "BACKOFF_MAX_S", 0.03)
    async with running() as site:
        for _ in delays:
            await replaced(site, signal.SIGKILL)
    assert re.findall(r"it starts again (.*)", caplog.text) == delays


async def test_an_unexpected_error_at_a_workers_start_fails_the_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = await settled(msgspec.structs.replace(model_config(), runtime=Runtime(executable="\0")))
    assert (model.health, model.failure) == (Health.FAILED, "supervision failed: embedded null byte")
    assert "supervision of worker 0 failed" in caplog.text
    await model.stop()


async def test_stopping_leaves_no_process() -> None:
    async with running(model_config(properties={"capacity": "1"}, min_workers=2)) as site:
        pids = [replica.pid for replica in site.model.workers.always]
        answers = await asyncio.gather(*(site.post(do="echo", sleep_s=0.1) for _ in range(2)))
        assert {answer.json()["pid"] for answer in answers} == set(pids)
    assert all(pid is not None and gone(pid) for pid in pids)


@pytest.mark.parametrize("spawned", [False, True])
async def test_stopping_while_loading_does_not_wait(tmp_path: Path, spawned: bool) -> None:
    config = model_config(properties={"load": "hang", "pids": str(tmp_path / "pids")})
    model = served(config)
    model.start()
    if spawned:
        await until((tmp_path / "pids").exists)
    await asyncio.sleep(0)  # else the process is being spawned
    async with asyncio.timeout(3):
        await model.stop()
    assert model.workers.always[0].state is WorkerState.STOPPED


async def test_a_worker_is_told_to_stop(tmp_path: Path) -> None:
    model = await settled(model_config(properties={"stopped": str(tmp_path / "stopped")}))
    await model.stop()
    assert (tmp_path / "stopped").exists()


async def test_a_worker_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_worker, "EXIT_GRACE_S", 0.1)
    async with running() as site:
        pid = site.pid
        frozen = asyncio.create_task(site.post(do="freeze"))
        await until(lambda: site.model.pool.busy == 1)
        await site.model.stop()
        assert (await frozen).status_code == 503
    assert gone(pid)


async def test_a_worker_that_waits_for_its_next_try_can_be_stopped(caplog: pytest.LogCaptureFixture) -> None:
    config = model_config(properties={"load": "crash"}, retry_threshold=1)
    model = served(config)
    model.start()
    await until(lambda: "did not load, attempt 1 of 2:\nthe worker exited with status 3" in caplog.text)
    await asyncio.sleep(0.1)
    assert model.workers.always[0].pid is None
    await model.stop()
    assert model.workers.always[0].state is WorkerState.STOPPED


async def test_a_worker_may_go_on_loading_when_it_is_ready() -> None:
    async with running() as site:
        assert (await site.post(do="progress")).json() == site.pid
        assert (await site.post(do="echo")).json()["pid"] == site.pid and site.model.ready


async def hanging(turns: asyncio.Semaphore) -> ServedModel:
    """A model that loads, and goes on loading."""
    config = model_config("hanging", properties={"load": "hang"})
    model = served(config, turns=turns)
    model.start()
    await until(lambda: model.workers.always[0].pid is not None)
    return model


async def test_workers_load_in_their_turn() -> None:
    turns = asyncio.Semaphore(1)
    first = await hanging(turns)
    config = model_config(min_workers=2)
    model = served(config, turns=turns)
    model.start()
    await (await settled(model_config("free"))).stop()  # which took as long as a load takes
    assert [replica.pid for replica in model.workers.always] == [None, None]
    pid = first.workers.always[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await wait_ready(model)
    assert (first.health, model.health) == (Health.FAILED, Health.HEALTHY)
    await asyncio.gather(first.stop(), model.stop())
    assert not turns.locked()


async def test_a_worker_that_was_ready_does_not_wait_for_a_turn() -> None:
    turns = asyncio.Semaphore(1)
    model = await settled(model_config(), turns=turns)
    first = await hanging(turns)
    pid = model.workers.always[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: model.workers.always[0].pid not in (pid, None) and model.ready)
    await asyncio.gather(first.stop(), model.stop())


async def test_a_worker_can_be_stopped_before_its_turn() -> None:
    turns = asyncio.Semaphore(1)
    first = await hanging(turns)
    model = served(model_config(), turns=turns)
    model.start()
    await asyncio.sleep(0)
    await model.stop()
    assert (model.workers.always[0].state, model.workers.always[0].pid) == (WorkerState.STOPPED, None)
    await first.stop()
    assert not turns.locked()


def test_every_device_gets_its_workers() -> None:
    assert [config.option.device for config in worker_configs(model_config(min_workers=2))] == ["auto", "auto"]
    everywhere = model_config(load_on_devices="*", option={"device": "cuda:1"})
    assert [config.option.device for config in worker_configs(everywhere)] == ["cuda:1"]
    many = model_config(load_on_devices="gpu0;gpu1;cpu")
    assert [config.option.device for config in worker_configs(many)] == ["cuda:0", "cuda:1", "cpu"]


@pytest.mark.parametrize("version", ["", "2"])
async def test_workers_are_counted_by_state(version: str) -> None:
    async with running(model_config(version=version)) as site:
        assert await site.metric(f'djl_workers{{model="m",state="ready",version="{version}"}}') == 1
        assert await site.metric('djl_workers{model="m",state="failed"') == 0


class Node:
    """A machine with one worker, at whose end of the connection the test is."""

    def __init__(self) -> None:
        self.front_ends, self.connection = socket.socketpair()
        self.exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def say(self, message: AnyMessage) -> None:
        frames = FrameWriter()
        frames.add(message)
        self.connection.sendall(frames.take())

    def end(self) -> None:
        if not self.exited.done():
            self.exited.set_result("was lost with its node")


class Nodes:
    """A `Placement`; `nodes`: those on which a worker was started."""

    def __init__(self) -> None:
        self.nodes: asyncio.Queue[Node] = asyncio.Queue()

    async def start(self, spec: ReplicaSpec, report: object = None) -> Started:
        node = Node()
        self.nodes.put_nowait(node)
        return Started(node.front_ends, node.exited, node.end, node="far")

    async def close(self) -> None:
        """Nothing is left."""


async def test_a_connection_that_closes_late_costs_a_successor_nothing() -> None:
    placed = Nodes()
    model = ServedModel(model_config(), Metrics().model("m", ""), placed)
    model.start()
    lost = await placed.nodes.get()
    lost.say(Status("ready"))
    await until(lambda: model.ready)
    (worker,) = model.workers.always
    worker.send(Load(bytes(8 << 20)))  # which the node does not read any more
    worker.flush()
    lost.end()
    successor = await placed.nodes.get()
    successor.say(Status("ready"))
    await until(lambda: model.ready)
    lost.connection.close()
    await until(lambda: lost.front_ends.fileno() == -1)
    assert model.pool.workers.capacity == 1 and worker.state is WorkerState.READY
    successor.connection.close()
    await model.stop()


async def test_a_worker_whose_last_words_break_a_silence_gets_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_worker, "VERDICT_S", 0.3)  # its node is silent too
    placed = Nodes()
    model = ServedModel(model_config(heartbeat_timeout_s=0.2), Metrics().model("m", ""), placed)
    model.start()
    silent = await placed.nodes.get()
    silent.say(Status("ready"))
    await until(lambda: model.workers.always[0].state is WorkerState.UNRESPONSIVE)
    client = Recorder()
    model.pool.submit(call(), client)
    silent.say(Report())
    silent.connection.close()
    successor = await placed.nodes.get()
    assert (model.pool.queued, client.error) == (1, None)
    successor.say(Status("ready"))
    await until(lambda: model.pool.in_flight == 1)
    successor.connection.close()
    await model.stop()
