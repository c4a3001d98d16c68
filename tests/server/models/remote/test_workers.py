"""Workers that agents start, in processes of their own, over real connections; without Ray."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
import pytest_asyncio

from djl_python import __version__
from djl_python.config import ModelConfig, ServerConfig
from djl_python.core import logs
from djl_python.core.errors import MachineLoadError, ModelLoadError
from djl_python.ipc.channel import Channel
from djl_python.ipc.joining import Endpoint, join
from djl_python.ipc.remote_protocol import AgentHello, Ticket
from djl_python.server.models.health import Health
from djl_python.server.models.placement import ReplicaSpec
from djl_python.server.models.remote.workers import RemoteWorkers
from djl_python.server.tls.workers import worker_endpoint
from tests.certificates import Pair
from tests.server.harness import Site, model_config, running, until
from tests.server.models.remote.agents import SpawnedAgents


def remote(*, option: dict[str, Any] | None = None, **serving: Any) -> ModelConfig:
    config = model_config(**serving)
    return msgspec.structs.replace(
        config, option=msgspec.structs.replace(config.option, placement="tests:Spawned", **(option or {}))
    )


class Fleet:
    """A server with two workers on two nodes."""

    def __init__(self, site: Site, agents: SpawnedAgents) -> None:
        self.site, self.agents = site, agents

    @property
    def nodes(self) -> list[str]:
        return sorted(worker.node for worker in self.site.model.workers)

    def number_of(self, node: str) -> int:
        return next(number for number, agent in enumerate(self.agents.agents) if agent.node == node)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    agents = SpawnedAgents()
    async with running(remote(min_workers=2), placement=RemoteWorkers(agents, Endpoint())) as site:
        yield Fleet(site, agents)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_workers_on_nodes_answer_and_show_where_they_are(fleet: Fleet) -> None:
    assert (await fleet.site.post(do="echo")).status_code == 200
    assert len(set(fleet.nodes)) == 2 and fleet.site.model.workers.always[0].pid is None
    for worker in fleet.site.model.workers:
        labels = f'model="m",node="{worker.node}",version="",worker="{worker.name}"'
        assert await fleet.site.metric(f"djl_worker_node{{{labels}}}") == 1


async def test_no_secret_is_in_a_command_line(fleet: Fleet) -> None:
    """Nor in an environment."""
    for agent in fleet.agents.agents:
        assert agent.process is not None
        if agent.process.returncode is not None:
            continue
        root = psutil.Process(agent.process.pid)
        for process in (root, *root.children(recursive=True)):
            assert all(len(word) < 200 and word.isprintable() for word in process.cmdline())
            own = process.environ().keys() - os.environ.keys()  # beside what it inherits
            assert not [name for name in own if "TOKEN" in name or "TICKET" in name]


async def test_printed_lines_are_in_the_front_ends_log(fleet: Fleet) -> None:
    lines: list[str] = []
    logs.add_reader(lines.append)
    try:
        assert (await fleet.site.post(do="print", text="from afar")).status_code == 200
        await until(lambda: bool(lines))
    finally:
        logs.remove_reader(lines.append)
    assert lines in ([f"[{node}] from afar"] for node in fleet.nodes)


async def test_a_worker_that_dies_itself_costs_its_requests(fleet: Fleet) -> None:
    """They may be the reason: they are not tried on another worker."""
    restarts = await fleet.site.metric("djl_worker_restarts_total")
    response = await fleet.site.post(do="die")
    assert response.status_code == 424 and "was killed by SIGKILL (out of memory?) on node" in response.text
    await until(lambda: all(fleet.nodes) and fleet.site.model.health is Health.HEALTHY)
    assert await fleet.site.metric("djl_rerun_requests_total") == 0
    assert await fleet.site.metric("djl_worker_restarts_total") == restarts + 1


async def test_a_lost_nodes_requests_run_elsewhere_unless_they_have_begun(fleet: Fleet) -> None:
    site = fleet.site
    before = len(fleet.agents.agents)
    lost = site.model.workers.always[0].node

    async def streamed() -> str:
        try:
            answer = await site.client.post("/invocations", json={"do": "stream", "n": 40, "gap_s": 0.05})
        except httpx.RemoteProtocolError:
            return "broken off"
        return "whole" if answer.text.count("\n") == 40 else "cut"

    begun = [asyncio.create_task(streamed()) for _ in range(2)]
    waiting = [asyncio.create_task(site.post(do="echo", sleep_s=1)) for _ in range(4)]
    await until(lambda: site.model.pool.in_flight == 6)
    await asyncio.sleep(0.2)  # the streams have begun
    fleet.agents.lose_node(fleet.number_of(lost))
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200] * 4
    assert sorted(await asyncio.gather(*begun)) in (["broken off", "whole"], ["cut", "whole"])
    assert await site.metric("djl_rerun_requests_total") == 2
    await until(lambda: all(fleet.nodes) and site.model.health is Health.HEALTHY)
    assert len(fleet.agents.agents) == before + 1 and lost not in fleet.nodes


async def test_a_removed_workers_agent_ends_with_it(fleet: Fleet) -> None:
    await fleet.site.registry.scale("m", min_workers=1)
    running_agents = [agent for agent in fleet.agents.agents if not agent.ended.done()]
    await until(lambda: sum(not agent.ended.done() for agent in running_agents) == 1)
    assert (await fleet.site.post(do="echo")).status_code == 200


async def test_a_worker_over_tls_answers_in_its_models_directory(tmp_path: Path) -> None:
    """Long answers pass. The directory is the same on this machine, and used where it is."""
    (tmp_path / "model.py").touch()
    pair = Pair.made(tmp_path / "pair", "front-end.example")
    settings = ServerConfig(worker_certificate_file=str(pair.certificate), worker_private_key_file=str(pair.key))
    agents = SpawnedAgents()
    config = msgspec.structs.replace(remote(), path=str(tmp_path))
    async with running(config, placement=RemoteWorkers(agents, worker_endpoint(settings))) as site:
        answer = await site.post(do="stream", n=4, size=1 << 20)
        assert answer.status_code == 200 and len(answer.content) > 4 << 20
        process = agents.agents[0].process
        assert process is not None
        (worker,) = psutil.Process(process.pid).children()
        assert worker.cwd() == str(tmp_path)
        (replica,) = site.model.workers.always
        replica.kill()
        await until(lambda: replica.setback == "was killed by SIGKILL (out of memory?) on node0")


class Silent(SpawnedAgents):
    """No node is ever free; `tickets` are those of agents that might come."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets: asyncio.Queue[Ticket] = asyncio.Queue()

    def launch(self, spec: ReplicaSpec, ticket: Ticket) -> "Never":  # type: ignore[override]
        self.tickets.put_nowait(ticket)
        return Never()


class Never:
    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        if not self.ended.done():
            self.ended.set_result("")


async def test_a_worker_for_which_no_node_is_free() -> None:
    workers = RemoteWorkers(Silent(), Endpoint())
    config = remote(option={"model_loading_timeout": 0.05})
    with pytest.raises(MachineLoadError, match=r"no node has had CPU 1 free for 0.05 s"):
        await workers.start(ReplicaSpec("0", config))
    await workers.close()


async def test_a_model_that_waits_for_a_node_can_be_stopped() -> None:
    launcher = Silent()
    async with running(remote(), placement=RemoteWorkers(launcher, Endpoint()), wait=False) as site:
        await launcher.tickets.get()
        (worker,) = site.model.workers.always
        assert worker.progress is not None and worker.progress.detail == "waiting for a node with CPU 1"


async def test_an_agent_of_another_version_is_refused() -> None:
    launcher = Silent()
    workers = RemoteWorkers(launcher, Endpoint())
    starting = asyncio.create_task(workers.start(ReplicaSpec("0", remote())))
    closed = asyncio.Event()
    channel = Channel(lambda _: None, closed.set)
    await channel.attach(await join(await launcher.tickets.get()))
    channel.send(AgentHello("0.0", "old-node"))
    with pytest.raises(ModelLoadError, match=r"old-node has djl-serving 0.0, and the front end"):
        await starting
    await closed.wait()
    await workers.close()


async def test_an_agent_that_goes_while_it_starts_a_worker_is_noticed() -> None:
    launcher = Silent()
    workers = RemoteWorkers(launcher, Endpoint())
    starting = asyncio.create_task(workers.start(ReplicaSpec("0", remote())))
    channel = Channel(lambda _: None, lambda: None)
    await channel.attach(await join(await launcher.tickets.get()))
    channel.send(AgentHello(__version__, "far"))
    await until(lambda: channel.reads > 0)  # it has been told what to start
    channel.close()
    with pytest.raises(MachineLoadError, match="the agent was lost with its node far"):
        await starting
    await workers.close()


async def test_a_worker_that_cant_be_started_there_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    agents = SpawnedAgents()
    workers = RemoteWorkers(agents, Endpoint())
    config = remote(option={"python_executable": "/nowhere/python"})
    with pytest.raises(ModelLoadError, match=r"node0: .*/nowhere/python: No such file"):
        await workers.start(ReplicaSpec("0", config))
    await workers.close()
