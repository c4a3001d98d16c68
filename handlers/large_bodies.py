"""The thread that parses large bodies, for the worker's event loop, which goes on writing other requests' tokens.

One thread, one body after the other: each thread that computes delays the loop by up to 5 ms at a time. Answers that
take long to write have such a thread too.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from djl_python.core.budgets import LARGE_BODY_BYTES

P = ParamSpec("P")
R = TypeVar("R")


class LargeBodies:
    """Runs functions in the thread, which begins with the first of them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "large bodies")

    async def parse(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of a function that parses so many bytes: in the thread if they are many, else at once.

        Raises:
            Exception: the function raised it.
        """
        if size <= LARGE_BODY_BYTES:
            return function(*args, **kwargs)
        return await self.run(function, *args, **kwargs)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of a function, in the thread.

        Raises:
            Exception: the function raised it.
        """
        run = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def close(self) -> None:
        """End the thread after the body that it parses."""
        self._thread.shutdown(wait=False, cancel_futures=True)
