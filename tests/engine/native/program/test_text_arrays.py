"""Texts in a row as arrays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from djl_python.engine.native.program.text_arrays import TextArrays
from djl_python.engine.reading.recipe.encoder import TextEmbedding

EMBEDDING = TextEmbedding(
    table=torch.zeros(10, 4), scale=1.0, positions=torch.zeros(64, 4), first_place=0, skipped_id=None,
    types=torch.zeros(2, 4), norm=None,
)  # fmt: skip


def test_texts_lie_in_a_row_with_blocks_and_tiles_of_their_own() -> None:
    arrays = TextArrays.of([[1, 2, 3], [4] * 50, [5]], [[0, 1], [], []], EMBEDDING, 1)
    assert arrays.ids.tolist() == [1, 2, 3, *[4] * 50, 5]
    assert arrays.type_ids.tolist() == [0, 1, *[0] * 52]
    assert arrays.positions.tolist() == arrays.places.tolist() == [0, 1, 2, *range(50), 0]
    assert arrays.lengths.tolist() == [3] * 3 + [50] * 50 + [1]
    assert arrays.slots.tolist() == [0, 1, 2, *range(16, 66), 80]  # blocks of 16: one, four, one
    assert arrays.blocks.tolist() == [0, 1, 2, 3, 4, 5]
    # No more than 24 queries share a walk, and of the long text nearly equally many do.
    assert arrays.tile_start.tolist() == [0, 3, 20, 37, 53]
    assert arrays.tile_size.tolist() == [3, 17, 17, 16, 1]
    assert arrays.tile_table.tolist() == [0, 1, 1, 1, 5]


def test_padding_has_no_position_where_the_model_skips_it() -> None:
    skipping = replace(EMBEDDING, first_place=2, skipped_id=1)
    arrays = TextArrays.of([[5, 1, 6], [1, 7]], [[], []], skipping, 1)
    assert arrays.places.tolist() == [2, 1, 3, 1, 2]
    assert arrays.positions.tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(("texts", "types"), [([[10]], [[]]), ([[-1]], [[]]), ([[1] * 65], [[]]), ([[1]], [[2]])])
def test_a_token_without_a_row_in_a_table_is_refused(texts: list[list[int]], types: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="of a table of"):
        TextArrays.of(texts, types, EMBEDDING, 1)
