import asyncio
import gc
import importlib.util
import sys

import pytest

from djl_python import event_loop


async def loop_of_its_own() -> str:
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")
def test_uvloop_is_used() -> None:
    assert event_loop.run(loop_of_its_own()).startswith("uvloop")


def test_asyncio_does_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert event_loop.run(loop_of_its_own()).startswith("asyncio")


def test_what_was_loaded_is_not_looked_through() -> None:
    threshold = gc.get_threshold()
    try:
        event_loop.settle()
        assert gc.get_freeze_count() > 0
        assert len(gc.get_objects(generation=2)) < gc.get_freeze_count()
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
