"""Carries out a plan: makes a virtual environment, completely or not at all, and installs packages with pip.

Runs in the front end's event loop; venv and pip are processes of their own, which end when the task is cancelled.

An environment can't be renamed, as its commands name it: it is made in its place, and complete once it has its stamp.
One without a stamp is a killed process's leftover, and is made again. Its maker holds a lock, and so does a pip that
has outlived its server: the lock belongs to the open file, which pip inherits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import ModelLoadError
from ...ipc.protocol import Status
from .interpreter import asked
from .plan import EnvironmentPlan
from .processes import PIP_INSTALL, Progress, failure, locked, made_whole, run, stamp
from .requirements import Requirements

log = logging.getLogger(__name__)


async def install(plan: EnvironmentPlan, progress: Progress) -> None:
    """Do what the plan says, unless it has been done.

    Raises:
        ModelLoadError: it can't be done; what pip has said is in the message.
    """
    if plan.complete:
        return
    try:
        async with locked(plan.lock, progress) as lock:
            if not plan.complete:  # another has done it meanwhile
                await _install(plan, progress, lock)
    except OSError as exc:
        where = exc.filename or plan.lock
        raise ModelLoadError(f"{where}: {exc.strerror}; DJL_VENV_DIR says where environments go") from exc


async def _install(plan: EnvironmentPlan, progress: Progress, lock: int) -> None:
    began_s, whither = time.monotonic(), plan.venv or f"{plan.interpreter.prefix} (option.enable_venv=false)"
    log.info("%s: installing into %s", plan.directory, whither)
    async with contextlib.nullcontext() if plan.venv is None else made_whole(plan.venv):
        if plan.venv is not None:
            await _make_venv(plan, plan.venv, lock)
        lacking = plan.lacking
        if plan.requirements is not None:
            await _install_requirements(plan, plan.requirements, progress, lock)
            lacking = await _lacking_now(plan)
            if replaced := [need for need in lacking if need not in plan.lacking]:
                file = plan.requirements.file
                raise ModelLoadError(f"{file}: does not go with {', '.join(replaced)}, which workers need")
        if lacking:
            plan.check_torch(lacking)
            await _install_needs(plan, lacking, progress, lock)
        if plan.venv is not None:
            _stamp(plan, plan.venv)
    log.info("%s: installed into %s in %.1f s", plan.directory, whither, time.monotonic() - began_s)


async def _make_venv(plan: EnvironmentPlan, venv: Path, lock: int) -> None:
    """An environment without packages of its own, which has the interpreter's."""
    options = [] if plan.interpreter.is_venv else ["--system-site-packages"]
    if plan.interpreter.has_pip:
        options.append("--without-pip")  # which takes seconds
    command = [plan.interpreter.executable, "-m", "venv", *options, str(venv)]
    status, lines = await run(command, lock, plan.environment, "/")
    if status:
        raise failure(command, status, lines)
    if plan.interpreter.is_venv:
        # One environment does not see another's packages by itself. As its own, after ours: editable ones count too.
        (site,) = venv.glob("lib/*/site-packages")
        lines = [f"import site; site.addsitedir({path!r})" for path in plan.interpreter.sites]
        (site / "_parent.pth").write_text("\n".join(lines) + "\n")
    settings = Path(plan.interpreter.prefix, "pip.conf")
    if settings.is_file():
        shutil.copy(settings, venv / "pip.conf")


async def _install_requirements(
    plan: EnvironmentPlan, requirements: Requirements, progress: Progress, lock: int
) -> None:
    command = [plan.executable, *PIP_INSTALL, *plan.arguments()]
    status, lines = await _run_pip("installing requirements", command, plan, progress, lock)
    if status:
        raise failure(command, status, lines, f"{requirements.file} can't be installed: ")


async def _install_needs(plan: EnvironmentPlan, lacking: Sequence[str], progress: Progress, lock: int) -> None:
    command = [plan.executable, *PIP_INSTALL, *plan.index(), *lacking]
    status, lines = await _run_pip("installing what workers need", command, plan, progress, lock)
    if status:
        raise plan.refusal(lacking, f"pip can't install it ({lines[-1] if lines else f'status {status}'})")


async def _lacking_now(plan: EnvironmentPlan) -> tuple[str, ...]:
    """The requirements of workers that the interpreter lacks."""
    interpreter = await asyncio.to_thread(asked, plan.executable, plan.environment, plan.needs)
    return interpreter.lacks(plan.needs)


async def _run_pip(
    what: str, command: Sequence[str], plan: EnvironmentPlan, progress: Progress, lock: int
) -> tuple[int, Sequence[str]]:
    """`run` with progress; pip's warnings go to the log."""
    progress(Status("loading", what))
    status, lines = await run(
        command, lock, plan.environment, plan.directory, lambda line: progress(Status("loading", what, current=line))
    )
    for line in lines if status == 0 else ():
        if line.startswith(("ERROR", "WARNING")):
            log.warning("%s: %s", plan.directory, line)
    return status, lines


def _stamp(plan: EnvironmentPlan, venv: Path) -> None:
    facts: dict[str, object] = {
        "interpreter": plan.interpreter.executable,
        "python": plan.interpreter.build,
        "requirements": str(plan.requirements.file) if plan.requirements else "",
        "needs": plan.lacking,
    }
    stamp(venv, facts)
