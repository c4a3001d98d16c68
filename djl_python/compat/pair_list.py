"""An ordered list of (key, value) pairs in which keys may repeat or be None: the content of an Input or an Output.

Runs in the worker. The method names are DJL's public API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class PairList:
    """Pairs in the order they were added."""

    def __init__(
        self,
        keys: Sequence[str | None] | None = None,
        values: Sequence[Any] | None = None,
        pair_list: Sequence[tuple[str | None, Any]] | None = None,
        pair_map: Mapping[str, Any] | None = None,
    ) -> None:
        """Empty, or from parallel `keys` and `values`, from pairs, or from a mapping.

        Raises:
            ValueError: `keys` and `values` differ in length.
        """
        keys, values = keys or (), values or ()
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys for {len(values)} values")
        self.keys: list[str | None] = list(keys)
        self.values: list[Any] = list(values)
        for key, value in (*(pair_list or ()), *(pair_map or {}).items()):
            self.add(key, value)

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[str | None, Any]]:
        return iter(zip(self.keys, self.values, strict=True))

    def __repr__(self) -> str:
        return f"PairList({list(self)!r})"

    def add(
        self,
        key: str | None = None,
        value: Any = None,
        index: int | None = None,
        pair: tuple[str | None, Any] | None = None,
    ) -> None:
        """Append a pair, given as key and value or as `pair`; before `index` where that is given."""
        if pair is not None:
            key, value = pair
        position = len(self.keys) if index is None else index
        self.keys.insert(position, key)
        self.values.insert(position, value)

    def add_all(self, other: PairList | None) -> None:
        """Append every pair of `other`."""
        if other is not None:
            self.keys += other.keys
            self.values += other.values

    def size(self) -> int:
        """How many pairs there are."""
        return len(self.keys)

    def is_empty(self) -> bool:
        """Whether there is no pair."""
        return not self.keys

    def get(self, key: str | None) -> Any:
        """The value of the first pair with this key, or None."""
        for candidate, value in self:
            if candidate == key:
                return value
        return None

    def contains(self, key: str | None) -> bool:
        """Whether a pair has this key."""
        return key in self.keys

    def key_at(self, index: int) -> str | None:
        """The key of the pair at `index`."""
        return self.keys[index]

    def value_at(self, index: int) -> Any:
        """The value of the pair at `index`."""
        return self.values[index]

    def get_keys(self) -> list[str | None]:
        """All keys, in order."""
        return self.keys

    def get_values(self) -> list[Any]:
        """All values, in order."""
        return self.values
