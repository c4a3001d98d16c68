"""How far the layers of an encoder look, by the functions that make their masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from djl_python.engine.attention.reach import Reach, reach_of, seen_by

Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Any]


@pytest.mark.parametrize(
    ("sees", "reach"),
    [
        (lambda batch, head, query, key: query >= 0, Reach(0, None)),
        (lambda batch, head, query, key: key <= query, Reach(0, 0)),
        (lambda batch, head, query, key: abs(query - key) <= 4, Reach(5, 4)),
        (lambda batch, head, query, key: (key <= query) & (key > query - 8), Reach(8, 0)),
        (lambda batch, head, query, key: abs(query - key) <= 100, Reach(0, None)),
    ],
)
def test_reach_is_what_a_query_sees_behind_and_ahead(sees: Sees, reach: Reach) -> None:
    assert reach_of(sees, 32) == reach
    places = torch.arange(32)
    expected = torch.as_tensor(sees(places, places, places[:, None], places)).expand(32, 32)
    assert torch.equal(seen_by(reach, 32), expected)


def test_chunks_have_no_reach() -> None:
    with pytest.raises(ValueError, match="not a range"):
        reach_of(lambda batch, head, query, key: query // 8 == key // 8, 32)
