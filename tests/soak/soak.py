"""The soak: a server with traffic in every API, to which everything happens that may happen to a server.

    python -m tests.soak.soak --minutes 30

Attacks and events alternate, each with a pause after it, until the time is over. Exit status 0: every request is
accounted for, every attack was refused in time, and nothing that the server uses has grown. Status 1: not so.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import psutil

from djl_python.testing import RunningServer, running_server
from tests.soak.events import DESCRIPTORS, EVENTS, Event, Server, await_answers
from tests.soak.hostile import ATTACKS, PATIENCE_S, Attack
from tests.soak.ledger import Ledger, Outcome
from tests.soak.processes import Sample, growth, sample, temporary_folder
from tests.soak.report import Action, Found, report
from tests.soak.traffic import DEMO, HANDLER, MINDIE, SCENARIOS, Scenario
from tests.soak.waits import Victim

ROOT: Final = Path(__file__).resolve().parents[2]
TEMPLATES: Final = {DEMO: "demo", MINDIE: "mindie", HANDLER: "custom_handler"}
_SAMPLE_S: Final = 2.0
#: The parts of the whole time that the warm-up and the rest at the end have.
_WARM_SHARE: Final = 0.1
_REST_SHARE: Final = 0.1
#: Pauses between a client's requests, and after an attack or an event, in seconds.
_THINK_S: Final = 0.3
_PAUSE_S: Final = 2.0
#: Requests that the next event catches began in this phase, so that none is charged to the attack before.
BETWEEN: Final = "between"
_BETWEEN_S: Final = 0.5
_TIMEOUT: Final = aiohttp.ClientTimeout(total=120)
#: Connections that waited beside a restart are closed soon: the server's descriptors count with them.
_KEPT_ALIVE_S: Final = 1.0


@dataclass(frozen=True)
class Plan:
    """How long, with which scenarios, and what happens meanwhile."""

    minutes: float
    scenarios: Sequence[Scenario] = SCENARIOS
    actions: Sequence[Attack | Event] = tuple(
        one for pair in itertools.zip_longest(ATTACKS, EVENTS) for one in pair if one is not None
    )


async def soak(plan: Plan, running: RunningServer, temporary: Path, command: str) -> Found:
    """Run a plan against a server that is up; what it found."""
    ledger = Ledger()
    bodies = {one.name: one.body() for one in plan.actions if isinstance(one, Attack)}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_ALIVE_S)
    async with aiohttp.ClientSession(running.url, connector=connector, timeout=_TIMEOUT) as session:
        server = Server(running.url, psutil.Process(running.process.pid), running.log, session)
        victim = Victim(session, ledger)
        results = Found(command, plan.minutes, ledger, victim)
        for scenario in plan.scenarios:  # what later answers are compared with
            await ledger.account(scenario.name, scenario.model, lambda one=scenario: one.ask(session))  # type: ignore[misc]
        samples: list[Sample] = []
        clients = [asyncio.create_task(_client(one, session, ledger)) for one in plan.scenarios]
        clients.append(asyncio.create_task(victim.run()))
        total_s = plan.minutes * 60
        try:
            await asyncio.sleep(total_s * _WARM_SHARE)
            victim.phase = "calm"
            sampler = asyncio.create_task(_sampler(server.process, temporary, samples))
            clients.append(sampler)
            await asyncio.sleep(total_s * _WARM_SHARE)
            results.not_tried = await _act(plan, bodies, server, results, total_s * (1 - 2 * _WARM_SHARE - _REST_SHARE))
            victim.phase = "rest"
            await asyncio.sleep(total_s * _REST_SHARE)
        finally:
            for client in clients:
                client.cancel()
            ended = await asyncio.gather(*clients, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        results.growths = growth(samples)
    return results


async def _client(scenario: Scenario, session: aiohttp.ClientSession, ledger: Ledger) -> None:
    """Ask one scenario until this is cancelled; the request that is under way then is waited for."""
    pauses = random.Random(scenario.name)
    while True:
        asked = asyncio.create_task(
            ledger.account(scenario.name, scenario.model, lambda: scenario.ask(session)), name=scenario.name
        )
        try:
            await asyncio.shield(asked)
        except asyncio.CancelledError:
            await asked
            raise
        await asyncio.sleep(pauses.uniform(0, 2 * _THINK_S))


async def _sampler(server: psutil.Process, temporary: Path, samples: list[Sample]) -> None:
    while True:
        samples.append(await asyncio.to_thread(sample, server, temporary))
        await asyncio.sleep(_SAMPLE_S)


async def _act(plan: Plan, bodies: Mapping[str, bytes], server: Server, results: Found, for_s: float) -> list[str]:
    """Do all actions, again and again, until the time is over; the names of those that have not had a turn."""
    deadline_s = time.monotonic() + for_s
    waiting = list(plan.actions)
    for action in itertools.cycle(plan.actions):
        if time.monotonic() > deadline_s:
            break
        results.victim.phase = action.name
        begun_s = time.monotonic()
        if isinstance(action, Attack):
            result, fault = await _attack(action, bodies[action.name], server, results.ledger)
        else:
            result, fault = await _happen(action, server, results.ledger)
        took_s = time.monotonic() - begun_s
        results.actions.append(Action(action.name, took_s, result, fault, isinstance(action, Attack)))
        if action in waiting:
            waiting.remove(action)
        await asyncio.sleep(_PAUSE_S)
        results.victim.phase = BETWEEN
        await asyncio.sleep(_BETWEEN_S)
    return [action.name for action in waiting]


async def _attack(attack: Attack, body: bytes, server: Server, ledger: Ledger) -> tuple[str, str]:
    """(what it got, what is wrong with that)."""
    ledger.sent += 1
    begun_s = time.monotonic()
    try:
        status = await attack.launch(server.url, server.session, body)
    except TimeoutError:
        outcome, result = Outcome.UNEXPLAINED, f"no answer in {PATIENCE_S:g} s"
        ledger.enter("hostile", outcome, f"{attack.name}: {result}")
        return result, result
    except (aiohttp.ClientError, OSError) as error:
        status, result = 0, type(error).__name__
    else:
        result = str(status) if status else "closed"
    took_s = time.monotonic() - begun_s
    fault = "" if status in attack.accepted else f"{result}, expected {sorted(attack.accepted)}"
    if not fault and attack.talk is None and status != 200 and took_s > attack.refusal_s:
        fault = f"refused only after more than {attack.refusal_s:g} s"
    expected = Outcome.RIGHT if status == 200 else Outcome.REFUSED
    ledger.enter("hostile", expected if status in attack.accepted else Outcome.UNEXPLAINED, f"{attack.name}: {fault}")
    return result, fault


async def _happen(event: Event, server: Server, ledger: Ledger) -> tuple[str, str]:
    try:
        if event.cuts is None:
            fault = await event.run(server)
        else:
            with ledger.disturb(event.name, event.cuts):
                fault = await event.run(server) or await await_answers(server, event.cuts)
    except Exception as error:  # a boundary: what an event could not do is a finding; the soak goes on
        fault = f"{type(error).__name__}: {error}"
    return "failed" if fault else "done", fault


def run(plan: Plan, command: str) -> Found:
    """Start a server, soak it, end it."""
    models = [part for name, template in TEMPLATES.items() for part in ("-m", f"{name}=template://{template}")]
    with temporary_folder() as folder:
        batches = Path(folder) / "batches"
        batches.mkdir()
        temporary = Path(folder) / "tmp"
        temporary.mkdir()
        environment = {
            "OPTION_THREADS": "1",
            "TMPDIR": str(temporary),
            "SERVING_BATCH_DIRECTORY": str(batches),
        }
        with running_server(*models, environment=environment) as running:
            process = psutil.Process(running.process.pid)
            process.rlimit(psutil.RLIMIT_NOFILE, (DESCRIPTORS, process.rlimit(psutil.RLIMIT_NOFILE)[1]))
            return asyncio.run(soak(plan, running, temporary, command))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report, and write it where `--output` says; 0 if the soak held."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long; default %(default)s")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "soak.md", help="the report; %(default)s")
    parser.add_argument("--only", default="", help="attacks and events whose names contain this")
    chosen = parser.parse_args(arguments)
    plan = Plan(chosen.minutes)
    if chosen.only:
        actions = [action for action in plan.actions if chosen.only in action.name]
        if not actions:
            parser.error(f"no attack or event has {chosen.only!r} in its name")
        plan = Plan(chosen.minutes, actions=actions)
    given = sys.argv[1:] if arguments is None else arguments
    results = run(plan, shlex.join(["python", "-m", "tests.soak.soak", *given]))
    text = report(results)
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(text, encoding="utf-8")
    print(text)
    return 1 if results.faults else 0


if __name__ == "__main__":
    sys.exit(main())
