from __future__ import annotations

import asyncio

import pytest

from djl_python.errors import HandlerError, PayloadError
from djl_python.user_errors import contained, one_line


class Mute(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("exc", "line"),
    [
        (ValueError("a\nb"), "ValueError: a"),
        (ValueError("\n  a"), "ValueError: a"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError("caf\udce9"), "ValueError: caf\\udce9"),
        (Mute(), "Mute"),
    ],
)
def test_one_line(exc: Exception, line: str) -> None:
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
def test_what_is_no_exception_becomes_one(error: BaseException, message: str) -> None:
    made = contained(error)
    assert isinstance(made, HandlerError) and made.message == message and made.__cause__ is error


def test_an_exception_stays_unless_no_coroutine_can_raise_it() -> None:
    error = ValueError()
    assert contained(error) is error
    assert isinstance(contained(StopIteration()), RuntimeError)
