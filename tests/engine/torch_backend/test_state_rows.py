"""Rows of sequences that come and go hold what the sequences' own caches held."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import LinearAttentionLayer

from djl_python.engine.torch_backend.state_rows import StateRows, states_of

HEADS, SIZE = 2, 3


def keys(seed: int, length: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, HEADS, length, SIZE, generator=torch.Generator().manual_seed(seed))


def states(seed: int) -> LinearAttentionLayer:
    layer = LinearAttentionLayer()
    layer.update_conv_state(keys(seed + 100, 4)[:, 0])
    layer.update_recurrent_state(keys(seed, 4))
    return layer


def held_by(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The states of a layer: of its convolution, and the recurrent one."""
    (_, convolved), (_, recurrent) = states_of(layer)
    return convolved, recurrent


def test_a_sequence_that_leaves_keeps_its_states() -> None:
    rows = StateRows()
    rows.arrange([5, 6, 7], {each: [states(each)] for each in (5, 6, 7)})
    held_by(rows.layers[0])[1].mul_(2)
    alone: dict[int, list[object]] = {8: [states(8)]}
    rows.arrange([7, 8], alone)
    assert (sorted(rows.ids), sorted(alone)) == ([7, 8], [5, 6])
    for each, (state,) in [(5, alone[5]), (6, alone[6]), (7, rows.take(7))]:
        assert isinstance(state, LinearAttentionLayer)
        convolved, recurrent = held_by(state)
        assert torch.equal(recurrent, 2 * keys(each, 4))
        assert torch.equal(convolved, keys(each + 100, 4)[:, 0])
        assert state.has_previous_state in (True, {0: True})
    assert rows.ids == [8]


def test_many_that_come_and_go_keep_their_states() -> None:
    rows = StateRows()
    alone: dict[int, list[object]] = {}
    for step in range(60):
        wanted = [each for each in range(40) if (each * 7 + step // 3) % 5 < 1 + step % 4]
        alone |= {each: [states(each)] for each in wanted if each not in alone and each not in rows.ids}
        rows.arrange(wanted, alone)
        expected = torch.cat([keys(each, 4) for each in rows.ids])
        assert torch.equal(held_by(rows.layers[0])[1], expected)


class OneState:
    """A layer of transformers before it had several states of a kind."""

    def __init__(self, states: torch.Tensor) -> None:
        self.conv_states = states
        self.recurrent_states = None


def test_layers_with_one_state_of_a_kind() -> None:
    rows = StateRows()
    rows.arrange([1, 2, 3], {each: [OneState(keys(each, 4))] for each in (1, 2, 3)})
    (held,) = rows.layers
    assert torch.equal(held.conv_states, torch.cat([keys(each, 4) for each in (1, 2, 3)]))
    held.conv_states.mul_(2)
    alone: dict[int, list[OneState]] = {}
    rows.arrange([3, 2], alone)
    assert torch.equal(alone[1][0].conv_states, 2 * keys(1, 4))
    assert alone[1][0].recurrent_states is None
    assert torch.equal(held.conv_states, torch.cat([2 * keys(each, 4) for each in rows.ids]))
