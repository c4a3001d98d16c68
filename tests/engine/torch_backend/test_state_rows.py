"""Rows of different lengths, of sequences that come and go, hold what the sequences' own caches held."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from djl_python.engine.torch_backend.state_rows import CacheRows

CPU = torch.device("cpu")
HEADS, SIZE = 2, 3


def keys(seed: int, length: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, HEADS, length, SIZE, generator=torch.Generator().manual_seed(seed))


def attention(seed: int, length: int) -> DynamicLayer:
    layer = DynamicLayer()
    layer.update(keys(seed, length), keys(seed + 100, length))
    return layer


def states(seed: int) -> LinearAttentionLayer:
    layer = LinearAttentionLayer()
    layer.update_recurrent_state(keys(seed, 4))
    layer.update_conv_state(keys(seed + 100, 4)[:, 0])
    return layer


def cache(seed: int, length: int) -> list[object]:
    return [attention(seed, length), states(seed)]


def test_each_row_goes_on_where_it_ended() -> None:
    rows = CacheRows()
    lengths = {5: 3, 6: 70, 7: 1}
    rows.arrange(lengths, {each: cache(each, length) for each, length in lengths.items()})
    told = rows.begin(CPU)
    assert told["position_ids"].tolist() == [[3], [70], [1]]
    assert told["attention_mask"].sum(dim=1).tolist() == [4, 71, 2]
    assert told["attention_mask"][:, -1].tolist() == [1, 1, 1]
    new = keys(1, 1, rows=3)
    seen, _ = rows.layers[0].update(new, -new)
    assert seen.shape == (3, HEADS, 71, SIZE)
    for row, (each, length) in enumerate(lengths.items()):
        assert torch.equal(seen[row, :, : 70 - length], torch.zeros(HEADS, 70 - length, SIZE))
        assert torch.equal(seen[row, :, 70 - length : 70], keys(each, length)[0])
        assert torch.equal(seen[row, :, 70], new[row, :, 0])
    rows.end()
    assert rows.lengths == [4, 71, 2]


def test_a_batch_that_goes_on_for_long() -> None:
    """Columns run out again and again, while who is in it changes, to longer ones and shorter ones."""
    rows = CacheRows()
    expected: dict[int, torch.Tensor] = {}
    for step in range(400):
        if step % 50 == 0:
            length = (3, 90, 1, 200)[step // 50 % 4]
            expected = dict(list(expected.items())[-1:]) | {step: keys(step, length)}
            rows.arrange(expected, {step: [attention(step, length)]})
        told = rows.begin(CPU)
        new = keys(step, 1, rows=len(rows.ids))
        seen, _ = rows.layers[0].update(new, -new)
        for row, each in enumerate(rows.ids):
            expected[each] = torch.cat([expected[each], new[row : row + 1]], dim=2)
            assert told["attention_mask"][row].sum() == expected[each].shape[2]
            assert torch.equal(seen[row, :, told["attention_mask"][row].bool()], expected[each][0])
        rows.end()


def test_who_leaves_takes_what_was_theirs() -> None:
    rows = CacheRows()
    rows.arrange([5, 6, 7], {each: cache(each, each) for each in (5, 6, 7)})
    rows.begin(CPU)
    new = keys(1, 1, rows=3)
    rows.layers[0].update(new, -new)
    rows.layers[1].recurrent_states[0].mul_(2)
    rows.end()
    alone: dict[int, list[object]] = {8: cache(8, 2)}
    rows.arrange([7, 8], alone)
    assert (sorted(rows.ids), sorted(alone)) == ([7, 8], [5, 6])
    for row, (each, layers) in enumerate([(5, alone[5]), (6, alone[6]), (7, rows.take(7))]):
        kept, state = layers
        assert isinstance(kept, DynamicLayer)
        assert isinstance(state, LinearAttentionLayer)
        assert torch.equal(kept.keys, torch.cat([keys(each, each), new[row : row + 1]], dim=2))
        assert torch.equal(kept.values[:, :, each:], -new[row : row + 1])
        assert torch.equal(state.recurrent_states[0], 2 * keys(each, 4))
        assert torch.equal(state.conv_states[0], keys(each + 100, 4)[:, 0])
        assert state.has_previous_state[0]
    assert rows.ids == [8]


def test_what_a_former_sequence_left_is_not_seen() -> None:
    rows = CacheRows()
    broken = attention(1, 9)
    broken.values[:] = float("nan")
    rows.arrange([1, 2], {1: [broken], 2: [attention(2, 9)]})
    rows.remove(1)
    rows.arrange([2, 3], {3: [attention(3, 2)]})
    rows.begin(CPU)
    _, values = rows.layers[0].update(keys(4, 1, rows=2), keys(5, 1, rows=2))
    assert values.isfinite().all()


def test_other_kinds_of_layers_are_not_held() -> None:
    assert CacheRows.can_hold(cache(1, 2))
    assert not CacheRows.can_hold([DynamicSlidingWindowLayer(4)])


class OneState:
    """A layer of transformers before it had several states of a kind."""

    def __init__(self, states: torch.Tensor) -> None:
        self.conv_states = states
        self.recurrent_states = None


def test_layers_with_one_state_of_a_kind() -> None:
    rows = CacheRows()
    rows.arrange([1, 2, 3], {each: [OneState(keys(each, 4))] for each in (1, 2, 3)})
    (held,) = rows.layers
    assert torch.equal(held.conv_states, torch.cat([keys(each, 4) for each in (1, 2, 3)]))
    held.conv_states.mul_(2)
    assert rows.begin(CPU) == {}
    rows.end()
    alone: dict[int, list[OneState]] = {}
    rows.arrange([3, 2], alone)
    assert torch.equal(alone[1][0].conv_states, 2 * keys(1, 4))
    assert alone[1][0].recurrent_states is None
    assert torch.equal(held.conv_states, torch.cat([2 * keys(each, 4) for each in rows.ids]))
