"""Holds the transformers caches of decoding sequences as one batch, a row each. Runs in the engine process.

A transformers cache is made for sequences of one length that begin and end together. Here each row has a length of its
own, and all rows end in the same column. A sequence that joins or leaves costs the copy of one row, not of all: the
last row moves into the place of one that leaves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from ..devices.transfers import indices

_STATES: Final = ("conv_states", "recurrent_states")
_STATES_ALONE: Final = "LinearAttentionLayer"  # older transformers don't have this class
#: A state's kind, and its number where transformers has several of a kind (older versions have one).
_Key = tuple[str, int | None]
_MORE: Final = 16  # columns that there is room for at least


@dataclass
class _Places:
    """Columns of the rows, which end in one: distances are as in a sequence, and windows and biases count from there.

    Attributes:
        lengths: tokens in each row.
        end: the column that the next keys go to.
        room: columns allocated.
    """

    lengths: list[int] = field(default_factory=list)
    end: int = 0
    room: int = 0

    @property
    def width(self) -> int:
        """Length of the longest row."""
        return max(self.lengths, default=0)


class CacheRows:
    """Cache layers of several sequences as one batch.

    Attributes:
        ids: the sequences, in the order of their rows.
        layers: the layers of a cache for a model call with one token of each row.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._places = _Places()
        self._tables: list[_KeyRows | _StateRows] = []

    @staticmethod
    def can_hold(layers: Iterable[Any]) -> bool:
        """Whether all layers of a transformers cache are of kinds handled here: keys and values, or states alone."""
        return all(type(layer) is DynamicLayer or type(layer).__name__ == _STATES_ALONE for layer in layers)

    @property
    def layers(self) -> list[Any]:
        return [table.layer for table in self._tables]

    @property
    def lengths(self) -> list[int]:
        """Number of tokens whose keys each row has."""
        return self._places.lengths

    def arrange(self, sequence_ids: Iterable[int], alone: dict[int, list[Any]]) -> None:
        """Hold these sequences and no others.

        Args:
            alone: cache layers of single sequences, by sequence id. Those of sequences that join are taken out, and
                those of sequences that leave are put back.
        """
        wanted = list(sequence_ids)
        for each in set(self.ids).difference(wanted):
            alone[each] = self.take(each)
        for each in wanted:
            if each not in self.ids:
                self._add(each, alone.pop(each))
        self._give_back()

    def take(self, sequence_id: int) -> list[Any]:
        """Remove a sequence's row, and return its layers as those of a cache of its own."""
        row = self.ids.index(sequence_id)
        taken = [table.alone(row, self.lengths[row]) for table in self._tables]
        self.remove(sequence_id)
        return taken

    @torch.inference_mode()  # sequences end outside of it, where tensors made in model calls can't be changed
    def remove(self, sequence_id: int) -> None:
        """Remove a sequence's row."""
        row, last = self.ids.index(sequence_id), len(self.ids) - 1
        if row < last:
            for table in self._tables:
                table.move(last, row)
            self.ids[row], self.lengths[row] = self.ids[last], self.lengths[last]
        self.ids.pop()
        self.lengths.pop()
        if not self.ids:
            self._tables = []
        for table in self._tables:
            if isinstance(table, _StateRows):
                table.narrow(last)

    def begin(self, device: torch.device) -> dict[str, Tensor]:
        """Prepare a model call that appends one key to each row.

        Returns:
            The call's arguments, by the names that forward functions have for them: `attention_mask` (rows, longest
            row + 1), `position_ids` (rows, 1). Empty where no layer has keys.
        """
        if not any(isinstance(table, _KeyRows) for table in self._tables):
            return {}
        places = self._places
        if places.end >= places.room:
            self._move_to(places.width)
        lengths = indices(places.lengths, device)[:, None]
        columns = torch.arange(places.width + 1, device=device)
        return {"attention_mask": (columns >= places.width - lengths).long(), "position_ids": lengths}

    def end(self) -> None:
        """Count the keys of a call that has succeeded. A failed call leaves keys that the next one overwrites."""
        self._places.lengths[:] = [length + 1 for length in self.lengths]
        self._places.end += 1

    def _add(self, sequence_id: int, layers: list[Any]) -> None:
        length = max((layer.get_seq_length() for layer in layers if not has_states(layer)), default=0)
        if not self.ids:
            self._places.end, self._places.room = length, _room_for(length)
            self._tables = [_StateRows(each) if has_states(each) else _KeyRows(self._places) for each in layers]
        elif length > self._places.end:
            self._move_to(length)
        for table, layer in zip(self._tables, layers, strict=True):
            table.put(len(self.ids), layer)
        self.ids.append(sequence_id)
        self.lengths.append(length)

    def _give_back(self) -> None:
        """Free memory that is more than rows and columns need and are likely to need again."""
        for table in self._tables:
            table.fit(len(self.ids))
        if self.ids and self._places.room > _room_for(_room_for(self._places.width)):
            self._move_to(self._places.width)

    def _move_to(self, end: int) -> None:
        """Move the rows so that they end before column `end`, with room after it."""
        places, room = self._places, _room_for(end)
        for table in self._tables:
            if isinstance(table, _KeyRows):
                table.move_all(end, room)
        places.end, places.room = end, room


class _KeyRows(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, (rows, heads, room, size) each. Before a row's first they are masked zeros."""

    def __init__(self, places: _Places) -> None:
        super().__init__()
        self._places = places
        self.keys: Any = None
        self.values: Any = None
        self.is_initialized = True

    @property
    def layer(self) -> _KeyRows:
        return self

    def put(self, row: int, layer: DynamicLayer) -> None:
        end = self._places.end
        first = end - layer.keys.shape[2]
        if self.keys is None:
            self.keys, self.values = (
                each.new_zeros(0, each.shape[1], self._places.room, each.shape[3])
                for each in (layer.keys, layer.values)
            )
        self.keys, self.values = _with_rows(self.keys, row + 1), _with_rows(self.values, row + 1)
        for held, given in ((self.keys, layer.keys), (self.values, layer.values)):
            held[row, :, first:end] = given[0]
            held[row, :, :first] = 0  # a former sequence's values may be infinite, and 0 * inf is not 0

    def move(self, source: int, row: int) -> None:
        self.keys[row] = self.keys[source]
        self.values[row] = self.values[source]

    def move_all(self, end: int, room: int) -> None:
        """Move the keys and values of all rows so that they end before column `end`."""
        places = self._places
        self.keys, self.values = (
            _moved(held[:, :, places.end - places.width : places.end], end, room) for held in (self.keys, self.values)
        )

    def fit(self, rows: int) -> None:
        self.keys, self.values = _without_spare(self.keys, rows), _without_spare(self.values, rows)

    def alone(self, row: int, length: int) -> DynamicLayer:
        made, end = DynamicLayer(), self._places.end
        made.lazy_initialization(self.keys, self.values)
        made.keys = self.keys[row : row + 1, :, end - length : end].clone()
        made.values = self.values[row : row + 1, :, end - length : end].clone()
        return made

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append a key and a value to each row; returns all columns from the longest row's first on."""
        places = self._places
        rows, end, first = len(places.lengths), places.end, places.end - places.width
        self.keys[:rows, :, end] = key_states[:, :, 0]
        self.values[:rows, :, end] = value_states[:, :, 0]
        return self.keys[:rows, :, first : end + 1], self.values[:rows, :, first : end + 1]

    def get_seq_length(self) -> int:
        return self._places.width


class _StateRows:
    """States of one layer, (rows, ...) each. The layer updates them in place."""

    def __init__(self, example: Any) -> None:
        self.layer = _with_states(example, lambda state: state[:0])
        self._held = {key: state[:0] for key, state in states_of(example)}

    def put(self, row: int, layer: Any) -> None:
        for key, state in states_of(layer):
            self._held[key] = held = _with_rows(self._held[key], row + 1)
            held[row] = state[0]
        self.narrow(row + 1)

    def move(self, source: int, row: int) -> None:
        for held in self._held.values():
            held[row] = held[source]

    def narrow(self, rows: int) -> None:
        for key, held in self._held.items():
            _set_state(self.layer, key, held[:rows])

    def fit(self, rows: int) -> None:
        for key, held in self._held.items():
            if (smaller := _without_spare(held, rows)) is not held:
                self._held[key] = smaller
                _set_state(self.layer, key, smaller[:rows])

    def alone(self, row: int, _: int) -> Any:
        return _with_states(self.layer, lambda state: state[row : row + 1].clone())


def states_of(layer: Any) -> list[tuple[_Key, Tensor]]:
    """(key, state) of each state that a layer uses."""
    found: list[tuple[_Key, Tensor | None]] = []
    for name in _STATES:
        states = getattr(layer, name)
        numbered = states.items() if isinstance(states, dict) else [(None, states)]
        found += [((name, number), state) for number, state in numbered]
    return [(key, state) for key, state in found if state is not None]


def _set_state(layer: Any, key: _Key, state: Tensor) -> None:
    name, number = key
    if number is None:
        setattr(layer, name, state)
    else:
        getattr(layer, name)[number] = state


def _with_states(layer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a cache layer, with `change` applied to each of its states."""
    made = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):  # by the number of the state
            setattr(made, name, dict(value))
    for key, state in states_of(layer):
        _set_state(made, key, change(state))
    return made


def has_states(layer: Any) -> bool:
    return hasattr(layer, _STATES[0])


def _with_rows(held: Tensor, rows: int) -> Tensor:
    """`held` with at least `rows` rows; where it has fewer, with room for some more."""
    if rows <= len(held):
        return held
    made = held.new_zeros(_rows_for(rows), *held.shape[1:])
    made[: len(held)] = held
    return made


def _without_spare(held: Tensor, rows: int) -> Tensor:
    """`held`, or its `rows` rows that are in use where it has many more."""
    return held if len(held) <= _rows_for(_rows_for(rows)) else held[: _rows_for(rows)].clone()


def _rows_for(rows: int) -> int:
    """Rows to allocate, so that others can join without a copy of all."""
    return rows + rows // 8 + 1


def _room_for(columns: int) -> int:
    """Columns to allocate so that `columns` can grow for a while."""
    return columns + columns // 8 + _MORE


def _moved(held: Tensor, end: int, room: int) -> Tensor:
    """(rows, heads, room, size) with `held` right before column `end`, and zeros elsewhere."""
    made = held.new_zeros(*held.shape[:2], room, held.shape[3])
    made[:, :, end - held.shape[2] : end] = held
    return made
