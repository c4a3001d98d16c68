"""The event loop of the front end and of workers, and the garbage that is made in it.

Runs in those processes' main threads.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

log = logging.getLogger(__name__)

#: Objects made before the youngest are looked through for cycles. Python's own 700 are six or eight requests' worth.
_YOUNG_OBJECTS: Final = 20_000


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`, in uvloop's event loop where it is installed: Windows has none."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


def run_undisturbed(main: Coroutine[Any, Any, _T]) -> _T:
    """`run`, whatever code that is not ours raises in the loop.

    A loop ends when a task of its raises SystemExit or KeyboardInterrupt. Whoever waits for the task gets that anyway;
    here the loop goes on.
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


def settle() -> None:
    """What has been made so far stays: no longer look for garbage in it.

    For when everything is loaded. Looking through it took 10 to 25 ms each time, in which no stream went on.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
