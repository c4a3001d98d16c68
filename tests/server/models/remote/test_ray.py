"""Workers on two nodes of a Ray cluster; one node is lost under load.

Ray itself is loaded by the cluster's process, the driver and the actors, never by this one.
"""

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from djl_python.config import ModelConfig, Options
from djl_python.ipc.remote_protocol import Ticket
from djl_python.server.models.placement import ReplicaSpec
from djl_python.server.models.remote.ray_cluster import RayLauncher
from djl_python.testing import running_server
from tests.server.harness import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (the extra `ray`)"),
]

HANDLER = """
import asyncio
from djl_python import Output

async def handle(inputs):
    if inputs.is_empty():
        return None
    order = inputs.get_as_json()
    if order["kind"] == "whole":
        await asyncio.sleep(order["seconds"])
        return Output().add_as_json({"number": order["number"]})
    return Output().add_stream_content(pieces(order))

async def pieces(order):
    for piece in range(10):
        yield f"{order['number']}.{piece}"
        await asyncio.sleep(order["seconds"] / 10)
"""
#: Has Ray take 127.0.0.1 for this machine's address, as where there is no network.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class Nodes:
    """The cluster's process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.models.remote.ray_nodes"],
            cwd=ROOT,
            env={**os.environ, **LOOPBACK},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if re.fullmatch(r"[\d.]+:\d+|done", line.strip()):  # Ray prints, too
                return line.strip()
        raise AssertionError("the cluster has ended")

    def do(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    cluster = Nodes()
    try:
        cluster.do("add a")
        cluster.do("add b")
        yield cluster
    finally:
        cluster.close()


def nodes_of(url: str) -> list[str]:
    """Where the model's workers are."""
    metrics = httpx.get(f"{url}/metrics", timeout=10).text
    return sorted(re.findall(r'^djl_worker_node{.*node="(.+?)".*} 1.0$', metrics, re.MULTILINE))


async def until_on(url: str, expected: list[str]) -> None:
    async with asyncio.timeout(90):
        while await asyncio.to_thread(nodes_of, url) != expected:
            await asyncio.sleep(0.5)


def outcome(number: int, lines: list[dict[str, str]]) -> str:
    """How a stream ended: with all its pieces, or with some and the reason."""
    *begun, last = lines
    right = [{"outputs": f"{number}.{piece}"} for piece in range(10)]
    if lines == right:
        return "whole"
    told = "lost with its node a" in last.get("error", "")
    return "told" if told and begun == right[: len(begun)] else f"wrong: {lines}"


async def test_an_actor_that_ray_refuses_costs_no_other_one(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LOOPBACK.items():
        monkeypatch.setenv(name, value)
    launcher = RayLauncher()
    nowhere = Ticket("127.0.0.1", 1, bytes(16), bytes(32))
    ends = []
    for option in ({"num_gpus": 1.5}, {"resources": "CPU=4"}, {}):
        config = ModelConfig(name="m", option=Options(placement="ray", ray_address=nodes.address, **option))
        spec = ReplicaSpec("0", config)
        await launcher.reach(spec)
        ends.append(await asyncio.wait_for(launcher.launch(spec, nowhere).ended, 60))
    await launcher.close()
    assert "1.5" in ends[0] and "CPU" in ends[1] and "Connect call failed" in ends[2], ends


async def test_every_request_is_accounted_for_when_a_node_is_lost(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    (tmp_path / "serving.properties").write_text(
        f"option.placement=ray\noption.ray_address={nodes.address}\noption.num_cpus=2\nminWorkers=2\n"
    )
    with running_server("-m", f"m={tmp_path}", environment=LOOPBACK, start_timeout_s=240) as server:
        await until_on(server.url, ["a", "b"])  # the server is ready with the first
        ledger: dict[int, str] = {}
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:

            async def ask(number: int) -> None:
                kind = "stream" if number % 4 == 0 else "whole"
                order = {"kind": kind, "number": number, "seconds": 1.0}
                assert number not in ledger
                try:
                    answer = await client.post("/predictions/m", json=order)
                except httpx.RemoteProtocolError:
                    ledger[number] = "broken off"
                    return
                if kind == "whole" and answer.status_code == 200:
                    ledger[number] = "whole" if answer.json() == {"number": number} else f"wrong: {answer.text}"
                elif answer.status_code == 200:
                    ledger[number] = outcome(number, [json.loads(line) for line in answer.text.splitlines()])
                else:
                    ledger[number] = f"{answer.status_code}: {answer.text}"

            asking = []
            for number in range(60):
                asking.append(asyncio.create_task(ask(number)))
                await asyncio.sleep(0.05)
                if number == 30:
                    await asyncio.to_thread(nodes.do, "kill a")
            await until_on(server.url, ["b"])
            nodes.do("add c")
            await asyncio.gather(*asking)
            outcomes = Counter(ledger.values())
            assert len(ledger) == 60
            assert set(outcomes) <= {"whole", "told", "broken off"}, outcomes
            assert all(ledger[number] == "whole" for number in ledger if number % 4), ledger
            await until_on(server.url, ["b", "c"])
            assert (await client.post("/predictions/m", json={"kind": "whole", "number": 1, "seconds": 0})).json() == {
                "number": 1
            }
            metrics = (await client.get("/metrics")).text
            assert float(re.findall(r"^djl_rerun_requests_total{.*} (.+)$", metrics, re.MULTILINE)[0]) > 0


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HANDLER)
    command = [sys.executable, "-m", "djl_python", "-m", str(tmp_path), "--placement", "ray", "--port", "0"]
    ended = subprocess.run(
        [*command, "--ray-address", "127.0.0.1:1"], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    assert "option.ray_address=127.0.0.1:1: " in ended.stderr and "ray start --head" in ended.stderr
