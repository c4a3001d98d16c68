"""Exceptions as their owner wants to read them: one line for the client, the user's frames for the log.

Runs in the worker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path
from traceback import StackSummary, TracebackException

#: Code between the process's entry and the user's function: never what went wrong.
_OUR_FRAMES = (
    str(Path(__file__).parent),
    str(Path(asyncio.__file__).parent),
    str(Path(concurrent.futures.__file__).parent),
    "<frozen importlib",
)


def one_line(exc: BaseException) -> str:
    """ "ValueError: what went wrong", the first line where there are several."""
    message = next((line for line in str(exc).splitlines() if line.strip()), "").strip()
    return f"{type(exc).__name__}: {message}" if message else type(exc).__name__


def user_traceback(exc: BaseException) -> str:
    """The traceback without the frames that lead from the process's entry to the user's code, causes included.

    A traceback that has no other frames is given whole, unless it is a syntax error: that tells its place itself.
    """
    report = TracebackException.from_exception(exc)
    _trim(report, set())
    return "".join(report.format()).rstrip()


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
