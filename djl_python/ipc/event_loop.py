"""The event loop of the front end and of workers, what it awaits, and its garbage collection.

Runs in the main threads of these processes.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

log = logging.getLogger(__name__)

#: Allocations before the youngest generation is collected. Python's default, 700, is six to eight requests' worth.
_YOUNG_OBJECTS: Final = 20_000


async def result_of(future: asyncio.Future[_T], discard: Callable[[_T], object]) -> _T:
    """The future's result. `discard` gets it where it comes in the turn of the loop in which this is cancelled."""
    try:
        return await future
    except asyncio.CancelledError:
        if not future.cancelled() and future.exception() is None:
            discard(future.result())
        raise


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`, on uvloop's event loop where uvloop is installed (Windows has none)."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


def run_stoppable(main: Coroutine[Any, Any, _T]) -> _T:
    """`run`, of which SIGINT and SIGTERM cancel `main`; then it raises SystemExit with 128 + the signal's number.

    In another thread than the main one, which alone receives signals, it is `run`. An exception that a signal's handler
    raises itself would reach whichever callback runs just then, and uvloop takes one from a protocol's callback for a
    fault of that connection.
    """
    if threading.current_thread() is not threading.main_thread():
        return run(main)
    stopped: list[int] = []
    with asyncio.Runner(loop_factory=_factory()) as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)

        def stop(number: int, _: FrameType | None) -> None:
            stopped.append(number)
            loop.call_soon_threadsafe(task.cancel)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return loop.run_until_complete(task)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if stopped:
                raise SystemExit(128 + stopped[0])


def run_undisturbed(main: Coroutine[Any, Any, _T]) -> _T:
    """`run`, but the loop survives a SystemExit or KeyboardInterrupt that user code raises in it.

    Either exception in a task or a callback ends an event loop. A coroutine that awaits the task receives the exception
    anyway; here the loop continues.
    """
    with asyncio.Runner(loop_factory=_factory()) as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as exc:
                if task.done():
                    raise
                log.error("a task, or a callback, raised %r: ignored", exc)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    uvloop: Any = importlib.import_module("uvloop")
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def freeze_heap() -> None:
    """Exempt all objects that exist now from garbage collection; call this when everything is loaded.

    Collecting with them took 10 to 25 ms each time, during which every stream paused.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
