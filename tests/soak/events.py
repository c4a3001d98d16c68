"""What happens to the server while it has traffic: a table of events.

Runs in the soak's event loop. Each event says which model's requests it may cut off (an empty name: all of them); what
fails otherwise is a failure of the soak. Such an event lasts until the model answers again. To add an event, add a row
to `EVENTS`.
"""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import psutil

from tests.soak.ledger import Broken, Refused
from tests.soak.processes import named
from tests.soak.traffic import DEMO, HANDLER, SCENARIOS, checked

_MIB: Final = 1 << 20
_SPARE_DESCRIPTORS: Final = 24
_IDLE_CONNECTIONS: Final = 200
_HELD_S: Final = 5.0
#: A frozen process is continued after this, so that a server that does not notice goes on too.
_FROZEN_S: Final = 15.0
#: A model has to answer again within this after an event, on a slow machine too.
_RECOVERY_S: Final = 60.0
_RETRY_S: Final = 0.2
#: The status and OpenAI's code that an upload gets for which there is no room.
_NO_ROOM: Final = (507, "storage")


@dataclass(frozen=True)
class Server:
    """The server under test: where it is, its process, its log, a client for it."""

    url: str
    process: psutil.Process
    log: Path
    session: aiohttp.ClientSession


@dataclass(frozen=True)
class Event:
    """`run` does it and returns what was wrong ("" if nothing); `cuts` is the model that may lose requests, or None."""

    name: str
    run: Callable[[Server], Awaitable[str]]
    cuts: str | None


def _killed(model: str, role: str = "") -> Callable[[Server], Awaitable[str]]:
    async def run(server: Server) -> str:
        process = named(server.process, model, role)
        if process is None:
            return f"there is no process {model}{role}"
        process.kill()
        return ""

    return run


def _frozen(model: str, role: str = "") -> Callable[[Server], Awaitable[str]]:
    async def run(server: Server) -> str:
        process = named(server.process, model, role)
        if process is None:
            return f"there is no process {model}{role}"
        process.send_signal(signal.SIGSTOP)
        for _ in range(int(_FROZEN_S)):
            await asyncio.sleep(1)
            if not process.is_running():
                return ""
        process.send_signal(signal.SIGCONT)
        return f"{model}{role} was frozen for {_FROZEN_S:g} s and not replaced"

    return run


async def await_answers(server: Server, model: str) -> str:
    """Wait until a model, or with an empty name each of them, answers again; what is wrong ("" if nothing)."""
    waiting = {one.model: one for one in SCENARIOS if model in ("", one.model)}
    try:
        async with asyncio.timeout(_RECOVERY_S):
            for scenario in waiting.values():
                while True:
                    try:
                        await scenario.ask(server.session)
                        break
                    except (Refused, Broken, aiohttp.ClientError, OSError):
                        await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        return f"no answer from {', '.join(waiting)} within {_RECOVERY_S:g} s"
    return ""


async def _reload(server: Server) -> str:
    async with server.session.post(f"/v2/repository/models/{DEMO}/load", json={}) as response:
        await checked(response)
    return ""


async def _disconnects(server: Server) -> str:
    """Clients that leave in the middle of a stream."""
    body = {"model": DEMO, "prompt": "Once", "max_tokens": 400, "stream": True, "ignore_eos": True}
    for _ in range(20):
        async with server.session.post("/v1/completions", json=body) as response:
            await response.content.readany()
            response.close()
    return ""


async def _descriptors_run_out(server: Server) -> str:
    """Idle connections until the front end has no descriptor left; its limit is lowered for that, and restored."""
    soft, hard = server.process.rlimit(psutil.RLIMIT_NOFILE)
    server.process.rlimit(psutil.RLIMIT_NOFILE, (server.process.num_fds() + _SPARE_DESCRIPTORS, hard))
    opened: list[asyncio.StreamWriter] = []
    try:
        for _ in range(_IDLE_CONNECTIONS):
            opened.append((await asyncio.open_connection(urlsplit(server.url).hostname, urlsplit(server.url).port))[1])
        await asyncio.sleep(_HELD_S)
    finally:
        for writer in opened:
            writer.close()
        server.process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
    return ""


async def _disk_runs_out(server: Server) -> str:
    """No file may grow beyond a limit (`RLIMIT_FSIZE`, which needs no privileges) while a larger one is uploaded."""
    soft, hard = server.process.rlimit(psutil.RLIMIT_FSIZE)
    limit = server.log.stat().st_size + 2 * _MIB
    server.process.rlimit(psutil.RLIMIT_FSIZE, (limit, hard))
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", b'{"custom_id": "1"}\n' * ((limit + 4 * _MIB) // 19), filename="large.jsonl")
    try:
        async with server.session.post("/v1/files", data=form) as response:
            body = await response.json()
            got = (response.status, body.get("error", {}).get("code"))
    finally:
        server.process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
    return "" if got == _NO_ROOM else f"an upload without room for it got {got}, expected {_NO_ROOM}"


EVENTS: Final = (
    Event("reload", _reload, None),
    Event("worker killed", _killed(DEMO), DEMO),
    Event("clients leave mid-stream", _disconnects, None),
    Event("engine killed", _killed(DEMO, "/engine"), DEMO),
    Event("disk full", _disk_runs_out, None),
    Event("handler killed", _killed(HANDLER), HANDLER),
    Event("worker frozen", _frozen(DEMO), DEMO),
    Event("descriptors used up", _descriptors_run_out, ""),
    Event("engine frozen", _frozen(DEMO, "/engine"), DEMO),
)
#: The server is started with this many descriptors at most, as a container may be.
DESCRIPTORS: Final = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
