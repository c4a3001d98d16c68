"""Exceptions as text for the model's owner: what went wrong, and the user's frames.

Runs in the worker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path
from traceback import StackSummary, TracebackException

from ..core.errors import HandlerError, ServingError, printable
from ..usercode.errors import one_line

#: Where the code between the process's entry and the user's function is: never at fault.
_OUR_FRAMES = (
    str(Path(__file__).parent),
    str(Path(asyncio.__file__).parent),
    str(Path(concurrent.futures.__file__).parent),
    "<frozen importlib",
)


def account(failure: Exception) -> str:
    """What went wrong, for the model's owner: one line, and the user's frames where their code raised it."""
    raised: BaseException | None = failure if not isinstance(failure, ServingError) else None
    if isinstance(failure, HandlerError):
        raised = failure.__cause__
    line = failure.message if isinstance(failure, ServingError) else one_line(failure)
    return line if raised is None else f"{line}\n{user_traceback(raised)}"


def user_traceback(exc: BaseException) -> str:
    """The traceback without the frames that lead from the process's entry to the user's code, causes included.

    A traceback without other frames is kept whole, unless it is a syntax error's: that error names its own place.
    """
    report = TracebackException.from_exception(exc)
    _trim(report, set())
    return printable("".join(report.format()).rstrip())


def _trim(report: TracebackException, seen: set[int]) -> None:
    if id(report) in seen:
        return
    seen.add(id(report))
    kept = [frame for frame in report.stack if not frame.filename.startswith(_OUR_FRAMES)]
    is_syntax_error = getattr(report, "filename", None) is not None
    if kept or is_syntax_error:
        report.stack = StackSummary.from_list(kept)
    for other in (report.__cause__, report.__context__, *(report.exceptions or ())):
        if other is not None:
            _trim(other, seen)
