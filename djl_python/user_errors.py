"""What the user's code raises, as this project can pass it on.

Runs in the worker.
"""

from __future__ import annotations

import asyncio

from .errors import HandlerError, printable


def one_line(exc: BaseException) -> str:
    """ "ValueError: what went wrong", the first line where there are several."""
    try:
        text = printable(str(exc))
    except BaseException:  # its __str__ is the user's code too
        text = ""
    message = next((line for line in text.splitlines() if line.strip()), "").strip()
    return f"{type(exc).__name__}: {message}" if message else type(exc).__name__


def contained(error: BaseException) -> Exception:
    """The same, or an Exception that says it and can leave a coroutine.

    SystemExit and KeyboardInterrupt would end the event loop, CancelledError the task, StopIteration can't be raised
    by a coroutine or carried by a future; and nobody looks out for what is no Exception, such as Rust's panics.
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
    """Whether it is the cancellation that was asked of the running task, and none that the user's code made up."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
