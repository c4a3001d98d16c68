"""A response that is kept, and all those of one owner. Runs in the front end's event loop."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ...dialects.shared.openai.responses import ENDED
from .events import EventLog


@dataclass(slots=True, eq=False)
class Kept:
    """A response that is kept, or will be.

    Attributes:
        owner: the name of the API key that made it; "" without keys.
        previous: the id of the response that it goes on with; "": none.
        background: whether its client does not wait for it.
        status: the response's; "" while a client that waits has not got all of it.
        content: its input items and the response, as JSON; None: they are on disk.
        size: the bytes of both, and of the events; while it is made in the background, of what there is of it.
        events: those of its stream, of a response in the background; None: it has none, or no more.
    """

    id: str
    owner: str
    previous: str
    expires_s: float
    background: bool
    status: str
    content: tuple[bytes, bytes] | None
    size: int
    events: EventLog | None = None

    @property
    def ended(self) -> bool:
        """Whether it stays as it is."""
        return self.status in ENDED

    @property
    def content_size(self) -> int:
        """The bytes of its input items and the response."""
        return self.size - (0 if self.events is None else self.events.size)


class Made:
    """Responses that are being made: how many, and their bytes."""

    def __init__(self) -> None:
        self.number = self.bytes = 0

    def count(self, number: int, size: int) -> None:
        """So many more, and bytes."""
        self.number += number
        self.bytes += size


class Share:
    """The responses of one owner.

    Attributes:
        kept: by id, the least recently used first.
        bytes: of all of them.
        made: those that are being made, whose room nobody else can have.
    """

    def __init__(self) -> None:
        self.kept: OrderedDict[str, Kept] = OrderedDict()
        self.bytes = 0
        self.made = Made()

    def add(self, kept: Kept) -> None:
        """Another one, which is in use."""
        self.kept[kept.id] = kept
        self.bytes += kept.size

    def remove(self, kept: Kept) -> None:
        """One of them is not kept any more."""
        del self.kept[kept.id]
        self.bytes -= kept.size

    def used(self, kept: Kept) -> None:
        """One of them is in use."""
        self.kept.move_to_end(kept.id)

    def oldest(self, sparing: Kept | None) -> Kept | None:
        """The least recently used one that has ended; None: there is none but `sparing`."""
        return next((kept for kept in self.kept.values() if kept.ended and kept is not sparing), None)
