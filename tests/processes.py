"""Processes of a server: the end of those that are not this one's children, and what they have loaded."""

from __future__ import annotations

import asyncio

import psutil


def has_ended(process: psutil.Process | int) -> bool:
    """Whether a process, or the one of this id, has ended, also where it stays a zombie.

    In a container whose first process collects nobody's children, each orphan that has ended stays one.
    """
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # also where it has ended between two of these questions
        return True


async def until_ended(*processes: psutil.Process | int, timeout_s: float = 30) -> None:
    """Wait until all have ended. A killed process still runs for a moment: the system takes it down after the kill.

    Raises:
        TimeoutError: one of them still runs.
    """
    async with asyncio.timeout(timeout_s):
        while not all(map(has_ended, processes)):
            await asyncio.sleep(0.01)


def those_with_torch(server: int) -> dict[str, bool]:
    """Whether a process of the server has torch, by the module that it runs, such as "djl_python.worker"."""
    by_module: dict[str, bool] = {}
    for process in psutil.Process(server).children(recursive=True):
        command = process.cmdline()
        if "-m" in command:
            module = command[command.index("-m") + 1]
            has_torch = any("libtorch" in one.path for one in process.memory_maps())
            by_module[module] = has_torch or by_module.get(module, False)
    return by_module
