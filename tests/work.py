"""Work, counted: how many instructions of Python something executes. Unlike its time, that is the same in every run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def work(function: Callable[[], Any]) -> int:
    """The number of bytecode instructions that a call executes; what is computed in C counts as one."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def grows_in_proportion(made: Callable[[int], Callable[[], Any]], size: int) -> bool:
    """Whether four times the size takes no more than about four times the work.

    Args:
        made: makes a function for a size.
    """
    small, large = work(made(size)), work(made(4 * size))
    return large <= 6 * small
