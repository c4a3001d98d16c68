import asyncio
import gc
import importlib.util
import signal
import socket
import sys

import pytest

from djl_python.ipc import event_loop


async def loop_of_its_own() -> str:
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")
def test_uvloop_is_used() -> None:
    assert event_loop.run(loop_of_its_own()).startswith("uvloop")


def test_asyncio_does_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert event_loop.run(loop_of_its_own()).startswith("asyncio")


@pytest.mark.parametrize("finds", [True, False])
def test_an_exit_raised_in_a_task_ends_no_loop(monkeypatch: pytest.MonkeyPatch, finds: bool) -> None:
    if not finds:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    async def leave(error: BaseException) -> None:
        raise error

    async def main() -> list[BaseException]:
        tasks = [asyncio.create_task(leave(error)) for error in (SystemExit(3), KeyboardInterrupt())]
        await asyncio.wait(tasks)
        return [error for task in tasks if (error := task.exception()) is not None]

    assert [type(error) for error in event_loop.run_undisturbed(main())] == [SystemExit, KeyboardInterrupt]


@pytest.mark.parametrize("finds", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_protocols_callback_stops(
    monkeypatch: pytest.MonkeyPatch, finds: bool, number: signal.Signals
) -> None:
    """uvloop takes an exception from there, a handler's SystemExit too, for a fault of the connection."""
    if not finds:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cancelled = []

    class Signalled(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            signal.raise_signal(number)

    async def main() -> None:
        near, far = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(Signalled, sock=near)
        try:
            far.sendall(b"x")
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        finally:
            transport.close()
            far.close()

    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as left:
        event_loop.run_stoppable(main())
    assert (left.value.code, cancelled) == (128 + number, [True])
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_frozen_objects_are_not_collected() -> None:
    threshold = gc.get_threshold()
    try:
        event_loop.freeze_heap()
        assert gc.get_freeze_count() > 0
        assert len(gc.get_objects(generation=2)) < gc.get_freeze_count()
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
