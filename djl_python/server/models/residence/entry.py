"""What residence keeps of each registered model.

Used in the front end's event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from ..served_model import ServedModel
from .clock import Timer


@dataclass(eq=False)
class Entry:
    """A model, by name and version, from the first time that anything is to be kept of it.

    Attributes:
        waiting: requests that mean it, and that its pool does not have yet.
        loading: the load that they wait for; None: none is under way.
        keep_alive_s: what a request has said since it was loaded, see `Residence.keep`; None: its settings hold.
        instance: the instance that was ready last.
        used_s: when its last call left, or its workers were ready, in the clock's seconds.
        timer: of the end of its idleness; None: none is set.
        need_bytes: what it needs, as estimated or, better, last measured; 0: not known yet.
        need_workers: how many workers that is for.
        reserved_bytes: what an operation has set aside for it, with workers that are starting; 0: none are.
        growing_bytes: the same for a spare worker that is starting.
    """

    waiting: int = 0
    loading: asyncio.Future[Any] | None = None
    keep_alive_s: float | None = None
    instance: ServedModel | None = None
    used_s: float = 0.0
    timer: Timer | None = None
    need_bytes: int = 0
    need_workers: int = 1
    reserved_bytes: int = 0
    growing_bytes: int = 0

    def bytes_of(self, workers: int) -> int:
        """What so many workers need."""
        return self.need_bytes * workers // self.need_workers

    def needs(self, size: int, workers: int) -> None:
        """So many workers have been found to need so much."""
        self.need_bytes, self.need_workers = size, workers
