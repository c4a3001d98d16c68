"""The event loop of the front end and of workers, and the garbage that is made in it.

Runs in those processes' main threads.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

#: Objects made before the youngest are looked through for cycles. Python's own 700 are six or eight requests' worth.
_YOUNG_OBJECTS: Final = 20_000


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`, in uvloop's event loop where it is installed: Windows has none."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


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
