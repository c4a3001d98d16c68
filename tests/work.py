"""Work, counted: how many instructions of Python something executes, and how many bytes it copies. Unlike its time,
that is the same in every run."""

from __future__ import annotations

import sys
import tracemalloc
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


def copied(function: Callable[[], Any]) -> int:
    """The bytes of all that a call makes, by instruction: a text that grows counts whenever it is copied."""
    count = before = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count, before
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        now, peak = tracemalloc.get_traced_memory()
        count += peak - before
        before = now
        tracemalloc.reset_peak()
        return trace

    outer = sys.gettrace()
    tracemalloc.start()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(outer)
        tracemalloc.stop()
    return count


def grows_in_proportion(
    made: Callable[[int], Callable[[], Any]], size: int, measure: Callable[[Callable[[], Any]], int] = work
) -> bool:
    """Whether four times the size takes no more than about four times the work.

    Args:
        made: makes a function for a size.
        measure: counts the work of a function: `work` or `copied`.
    """
    small, large = measure(made(size)), measure(made(4 * size))
    return large <= 6 * small
