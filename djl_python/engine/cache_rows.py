"""What sequences that generate keep in transformers' caches, held together: a row each. Runs in the engine process.

A transformers cache is made for sequences of one length that begin and end together. Here each row has a length of its
own, and who comes or goes costs one row's copy, not everybody's: the last row moves to where one has ended.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

_STATES: Final = ("conv_states", "recurrent_states")
_STATES_ALONE: Final = "LinearAttentionLayer"  # which older transformers don't have
#: A state's kind, and its number where transformers has several of a kind (older ones have one).
_Key = tuple[str, int | None]
_LENGTHS: Final = 64  # room for keys grows by at least so many


@dataclass
class _Places:
    """Where each row's next key goes: behind its others."""

    lengths: list[int] = field(default_factory=list)
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    ends: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    width: int = 0  # of the longest row, with its next key

    def prepare(self, device: torch.device) -> None:
        self.rows = torch.arange(len(self.lengths), device=device)
        self.ends = torch.tensor(self.lengths, device=device)
        self.width = 1 + max(self.lengths)


class CacheRows:
    """Layers of several sequences' caches as one batch.

    Attributes:
        ids: the sequences, in the order of their rows.
        layers: to be put into a cache for a call with one token of each row.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._places = _Places()
        self._tables: list[_KeyRows | _StateRows] = []

    @staticmethod
    def can_hold(layers: Iterable[Any]) -> bool:
        """Whether layers are of the kinds that are known here, of a cache that begins its sequences together."""
        return all(type(layer) is DynamicLayer or type(layer).__name__ == _STATES_ALONE for layer in layers)

    @property
    def layers(self) -> list[Any]:
        return [table.layer for table in self._tables]

    @property
    def lengths(self) -> list[int]:
        """How many tokens' keys each row has."""
        return self._places.lengths

    def arrange(self, sequence_ids: Iterable[int], alone: dict[int, list[Any]]) -> None:
        """Hold these sequences and no others.

        Args:
            alone: layers of caches with one sequence, by its id. Who is held from now on goes from there, and who isn't
                any more comes back.
        """
        wanted = list(sequence_ids)
        for each in set(self.ids).difference(wanted):
            alone[each] = self.take(each)
        for each in wanted:
            if each not in self.ids:
                self._add(each, alone.pop(each))

    def take(self, sequence_id: int) -> list[Any]:
        """A sequence's layers by themselves; it is not held any more."""
        row = self.ids.index(sequence_id)
        taken = [table.alone(row, self.lengths[row]) for table in self._tables]
        self.remove(sequence_id)
        return taken

    @torch.inference_mode()  # what calls make can't be changed outside of it, and sequences end there
    def remove(self, sequence_id: int) -> None:
        """Forget a sequence that is held."""
        row, last = self.ids.index(sequence_id), len(self.ids) - 1
        if row < last:
            for table in self._tables:
                table.move(last, row)
            self.ids[row], self.lengths[row] = self.ids[last], self.lengths[last]
        self.ids.pop()
        self.lengths.pop()
        for table in self._tables:
            table.narrow(last)

    def begin(self, device: torch.device) -> dict[str, Tensor]:
        """A call follows that appends one key to each row.

        Returns:
            What to tell it of that, by the names that forward functions have for it: `attention_mask` (rows, width of
            the longest), `position_ids` (rows, 1). Empty where there are no keys.
        """
        if not any(isinstance(table, _KeyRows) for table in self._tables):
            return {}
        places = self._places
        places.prepare(device)
        ends = places.ends[:, None]
        return {
            "attention_mask": (torch.arange(places.width, device=device) <= ends).long(),
            "position_ids": ends,
        }

    def end(self) -> None:
        """The call has succeeded. One that hasn't leaves keys that the next one overwrites."""
        self._places.lengths[:] = [length + 1 for length in self.lengths]

    def _add(self, sequence_id: int, layers: list[Any]) -> None:
        if not self._tables:
            self._tables = [_StateRows(each) if _has_states(each) else _KeyRows(self._places) for each in layers]
        row = len(self.ids)
        for table, layer in zip(self._tables, layers, strict=True):
            table.put(row, layer)
        self.ids.append(sequence_id)
        self.lengths.append(max((layer.get_seq_length() for layer in layers if not _has_states(layer)), default=0))


class _KeyRows(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer: (rows, heads, room, size) each. Beyond a row's end they are masked, but finite."""

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
        length = layer.keys.shape[2]
        self._make_room(layer.keys, layer.values, row + 1, length)
        for held, given in ((self.keys, layer.keys), (self.values, layer.values)):
            held[row, :, :length] = given[0]
            held[row, :, length:] = 0  # a former sequence's may be infinite, and zero times that isn't zero

    def move(self, source: int, row: int) -> None:
        self.keys[row] = self.keys[source]
        self.values[row] = self.values[source]

    def narrow(self, rows: int) -> None:
        if not rows:
            self.keys = self.values = None

    def alone(self, row: int, length: int) -> DynamicLayer:
        made = DynamicLayer()
        made.lazy_initialization(self.keys, self.values)
        made.keys = self.keys[row : row + 1, :, :length].clone()
        made.values = self.values[row : row + 1, :, :length].clone()
        return made

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """One more key and value of each row; returns those of all places up to the longest row's end."""
        places = self._places
        count = len(places.lengths)
        self._make_room(key_states, value_states, count, places.width)
        self.keys[places.rows, :, places.ends] = key_states[:, :, 0]
        self.values[places.rows, :, places.ends] = value_states[:, :, 0]
        return self.keys[:count, :, : places.width], self.values[:count, :, : places.width]

    def get_seq_length(self) -> int:
        return self._places.width - 1

    def _make_room(self, keys: Tensor, values: Tensor, rows: int, length: int) -> None:
        self.keys = _with_room(self.keys, keys, rows, length)
        self.values = _with_room(self.values, values, rows, length)


class _StateRows:
    """States of one layer, each (rows, ...). The layer works on them where they are."""

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

    def alone(self, row: int, _: int) -> Any:
        return _with_states(self.layer, lambda state: state[row : row + 1].clone())


def states_of(layer: Any) -> list[tuple[_Key, Tensor]]:
    """A layer's states, each with its name here; those that it doesn't use are left out."""
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
    """A copy of a layer of a cache whose states are made of its own."""
    made = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):  # by the number of the state
            setattr(made, name, dict(value))
    for key, state in states_of(layer):
        _set_state(made, key, change(state))
    return made


def _has_states(layer: Any) -> bool:
    return hasattr(layer, _STATES[0])


def _with_rows(held: Tensor, rows: int) -> Tensor:
    """The same with at least so many rows: twice as many, where there are too few."""
    if rows <= len(held):
        return held
    made = held.new_zeros(max(rows, 2 * len(held)), *held.shape[1:])
    made[: len(held)] = held
    return made


def _with_room(held: Tensor | None, like: Tensor, rows: int, length: int) -> Tensor:
    """(rows, heads, room, size) with at least so many rows, and room for so many keys."""
    if held is None:
        held = like.new_zeros(0, like.shape[1], 0, like.shape[3])
    if length > held.shape[2]:
        room = -(-max(length + 1, held.shape[2] * 5 // 4) // _LENGTHS) * _LENGTHS
        made = held.new_zeros(len(held), held.shape[1], room, held.shape[3])
        made[:, :, : held.shape[2]] = held
        held = made
    return _with_rows(held, rows)
