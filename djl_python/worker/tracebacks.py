"""Exceptions as text for the model's owner: the error, and the user's frames.

Runs in the worker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sysconfig
from pathlib import Path
from traceback import StackSummary, TracebackException
from typing import Final

from ..core.errors import HandlerError, ServingError, printable
from ..usercode.errors import one_line

#: Folders of the code between the process's entry and the user's function: never at fault.
_OUR_FRAMES = (
    str(Path(__file__).parent),
    str(Path(asyncio.__file__).parent),
    str(Path(concurrent.futures.__file__).parent),
    "<frozen importlib",
)


#: Folders without user code: this package (in a clone, its handlers are beside it), Python's library, packages.
_PACKAGE: Final = Path(__file__).parents[1]
_NOT_THE_USERS: Final = (
    *(f"{path}/" for path in (_PACKAGE, _PACKAGE.with_name("handlers"))),
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")),
    "<frozen ",
)


def account(failure: Exception) -> str:
    """An account of an error for the model's owner: one line, and the user's frames where their code raised it."""
    raised: BaseException | None = failure if not isinstance(failure, ServingError) else None
    if isinstance(failure, HandlerError):
        raised = failure.__cause__
    line = failure.message if isinstance(failure, ServingError) else one_line(failure)
    return line if raised is None else f"{line}\n{user_traceback(raised)}"


def user_traceback(exc: BaseException) -> str:
    """The traceback from the user's first line on, causes included.

    If no frame is the user's, it lacks the frames from the process's entry to the failing code. A traceback without
    other frames is kept whole, except for a syntax error, which names its own place.
    """
    report = TracebackException.from_exception(exc)
    _trim(report, set())
    return printable("".join(report.format()).rstrip())


def _trim(report: TracebackException, seen: set[int]) -> None:
    if id(report) in seen:
        return
    seen.add(id(report))
    kept = [frame for frame in report.stack if not frame.filename.startswith(_OUR_FRAMES)]
    users = (index for index, frame in enumerate(kept) if not frame.filename.startswith(_NOT_THE_USERS))
    kept = kept[next(users, 0) :]
    is_syntax_error = getattr(report, "filename", None) is not None
    if kept or is_syntax_error:
        report.stack = StackSummary.from_list(kept)
    for other in (report.__cause__, report.__context__, *(report.exceptions or ())):
        if other is not None:
            _trim(other, seen)
