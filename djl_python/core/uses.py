"""Counts the uses of things, so that each can be removed after its last use. Runs in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Uses(Generic[K]):
    """The uses of things, by their keys.

    Example:
        >>> async def go() -> None:
        ...     uses = Uses[str]()
        ...     with uses.of(["a"]):
        ...         ending = asyncio.create_task(uses.ended("a"))
        ...     await ending
        >>> asyncio.run(go())
    """

    def __init__(self) -> None:
        self._counts = Counter[K]()
        self._unused: dict[K, asyncio.Event] = {}  # of things whose end somebody awaits

    @contextlib.contextmanager
    def of(self, keys: Iterable[K]) -> Iterator[None]:
        """Use things until the context ends."""
        taken = list(keys)
        self._counts.update(taken)
        try:
            yield
        finally:
            self._counts.subtract(taken)
            for key in taken:
                if self._counts[key] <= 0:
                    del self._counts[key]
                    if key in self._unused:
                        self._unused[key].set()

    async def ended(self, key: K) -> None:
        """Wait until nobody uses a thing. One at a time may wait for it."""
        if self._counts[key] > 0:
            unused = self._unused[key] = asyncio.Event()
            await unused.wait()
            del self._unused[key]
