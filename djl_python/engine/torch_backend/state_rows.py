"""Holds the recurrent states of decoding sequences as one batch, a row each. Runs in the engine process.

A transformers cache is made for sequences that begin and end together. Here a sequence that joins or leaves costs the
copy of one row, not of all: the last row moves into the place of one that leaves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

_STATES: Final = ("conv_states", "recurrent_states")
#: A state's kind, and its number where transformers has several of a kind (older versions have one).
_Key = tuple[str, int | None]


class StateRows:
    """Cache layers of several sequences as one batch. What else than states a layer has is nobody's.

    Attributes:
        ids: the sequences, in the order of their rows.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._tables: list[_Table] = []

    @property
    def layers(self) -> list[Any]:
        """The layers of a cache for a model call with one token of each row, which updates the states in place."""
        return [table.layer for table in self._tables]

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
        for table in self._tables:
            table.fit(len(self.ids))

    def take(self, sequence_id: int) -> list[Any]:
        """Remove a sequence's row, and return its layers as those of a cache of its own."""
        row = self.ids.index(sequence_id)
        taken = [table.alone(row) for table in self._tables]
        self.remove(sequence_id)
        return taken

    @torch.inference_mode()  # sequences end outside of it, where tensors made in model calls can't be changed
    def remove(self, sequence_id: int) -> None:
        """Remove a sequence's row."""
        row, last = self.ids.index(sequence_id), len(self.ids) - 1
        if row < last:
            for table in self._tables:
                table.move(last, row)
            self.ids[row] = self.ids[last]
        self.ids.pop()
        if not self.ids:
            self._tables = []
        for table in self._tables:
            table.narrow(last)

    def _add(self, sequence_id: int, layers: list[Any]) -> None:
        if not self.ids:
            self._tables = [_Table(each) for each in layers]
        for table, layer in zip(self._tables, layers, strict=True):
            table.put(len(self.ids), layer)
        self.ids.append(sequence_id)


class _Table:
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
        """Free memory that is more than these rows need and are likely to need again."""
        for key, held in self._held.items():
            if (smaller := _without_spare(held, rows)) is not held:
                self._held[key] = smaller
                _set_state(self.layer, key, smaller[:rows])

    def alone(self, row: int) -> Any:
        return _with_states(self.layer, lambda state: state[row : row + 1].clone())


def states_of(layer: Any) -> list[tuple[_Key, Tensor]]:
    """(key, state) of each state that a layer uses."""
    keyed_states: list[tuple[_Key, Tensor | None]] = []
    for name in _STATES:
        states = getattr(layer, name)
        numbered = states.items() if isinstance(states, dict) else [(None, states)]
        keyed_states += [((name, number), state) for number, state in numbered]
    return [(key, state) for key, state in keyed_states if state is not None]


def has_states(layer: Any) -> bool:
    return hasattr(layer, _STATES[0])


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
