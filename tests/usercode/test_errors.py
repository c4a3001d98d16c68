from __future__ import annotations

import asyncio

import pytest

from djl_python.core.errors import HandlerError, PayloadError
from djl_python.usercode.errors import contained, is_cancellation, one_line


class Mute(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("exc", "line"),
    [
        (ValueError("a\nb"), "ValueError: a"),
        (ValueError("\n  \n  a  \n"), "ValueError: a"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError("caf\udce9"), "ValueError: caf\\udce9"),
        (Mute(), "Mute"),
    ],
)
def test_an_exception_becomes_a_line(exc: Exception, line: str) -> None:
    assert one_line(exc) == line


def test_a_serving_error_can_be_sent_whatever_it_says() -> None:
    assert PayloadError("caf\udce9").message.encode() == b"caf\\udce9"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(2), "the handler called sys.exit(2)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError: the handler cancelled itself"),
        (BaseExceptionGroup("two", [GeneratorExit()]), "BaseExceptionGroup: two (1 sub-exception)"),
    ],
)
def test_an_exit_becomes_a_handler_error(error: BaseException, message: str) -> None:
    made = contained(error)
    assert isinstance(made, HandlerError) and made.message == message and made.__cause__ is error


def test_an_exception_stays_unless_no_coroutine_can_raise_it() -> None:
    error = ValueError()
    assert contained(error) is error
    assert isinstance(contained(StopIteration()), RuntimeError)


async def test_a_cancellation_is_one_that_somebody_asked_for() -> None:
    async def wait() -> tuple[bool, bool]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as exc:
            return is_cancellation(exc), is_cancellation(ValueError())
        raise AssertionError

    cancelled = asyncio.create_task(wait())
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await cancelled == (True, False)
    assert not is_cancellation(asyncio.CancelledError())
    in_no_task = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: in_no_task.set_result(is_cancellation(asyncio.CancelledError())))
    assert not await in_no_task
