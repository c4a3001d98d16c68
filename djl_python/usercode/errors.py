"""Exceptions of the user's code, in a form that this project can pass on.

Runs in the worker.
"""

from __future__ import annotations

import asyncio

from ..core.errors import HandlerError, printable


def one_line(exc: BaseException) -> str:
    """An exception as "ValueError: what went wrong": its type and the first line of its message."""
    try:
        text = printable(str(exc))
    except BaseException:  # its __str__ is the user's code too
        text = ""
    message = next((line for line in text.splitlines() if line.strip()), "").strip()
    return f"{type(exc).__name__}: {message}" if message else type(exc).__name__


def contained(error: BaseException) -> Exception:
    """`error` itself, or an Exception that stands for it and that a coroutine can raise.

    SystemExit and KeyboardInterrupt would end the event loop, CancelledError the task. StopIteration can't be raised
    by a coroutine or carried by a future. Other BaseExceptions, such as Rust's panics, are not expected by any caller.
    """
    made: Exception
    match error:
        case StopIteration():
            made = RuntimeError("the handler raised StopIteration")
        case Exception():
            return error
        case SystemExit():
            made = HandlerError(f"the handler called sys.exit({error.code!r})")
        case asyncio.CancelledError():
            made = HandlerError("CancelledError: the handler cancelled itself")
        case _:
            made = HandlerError(one_line(error))
    made.__cause__ = error
    return made


def is_cancellation(error: BaseException) -> bool:
    """Whether `error` is a requested cancellation of the running task, not a CancelledError that user code raised."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
