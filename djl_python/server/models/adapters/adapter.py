"""One adapter, as it was registered. Used in the front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

_TRUE: Final = "true"


class Adapter(msgspec.Struct, frozen=True, eq=False):
    """An adapter; each registration is an object of its own, even with equal values.

    Attributes:
        source: a path or a URL, as the client wrote it.
        options: the parameters of the registration, beside name and source.
    """

    name: str
    source: str
    options: dict[str, str] = {}

    @property
    def preload(self) -> bool:
        """Whether it was to be loaded at once; it always is."""
        return self.options.get("preload", _TRUE) == _TRUE

    @property
    def pin(self) -> bool:
        """Whether the engine keeps it where it computes."""
        return self.options.get("pin") == _TRUE


#: By name.
Adapters = Mapping[str, Adapter]


def sources_of(adapters: Adapters) -> dict[str, str]:
    """Their sources, by name."""
    return {name: adapter.source for name, adapter in adapters.items()}
