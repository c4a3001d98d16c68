"""Layers with a state, on a flat batch."""

from __future__ import annotations

import pytest
import torch

from djl_python.engine.torch_backend.recurrent import returned_cache, row_selector


def test_rows_are_selected_on_the_device_and_without_an_index_where_that_can_be() -> None:
    """An index on the host would be copied to the device in every layer, which waits for all that it is computing."""
    device = torch.device("meta")
    assert row_selector([2, 3, 4], device) == slice(2, 5)
    apart = row_selector([1, 0, 2], device)
    assert isinstance(apart, torch.Tensor) and apart.device == device
    values = torch.arange(5)
    for rows in ([2, 3, 4], [4, 0, 2]):
        assert values[row_selector(rows, torch.device("cpu"))].tolist() == rows


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_returned_cache_has_one_of_two_names(name: str) -> None:
    cache: list[object] = []  # without layers, but there
    assert returned_cache({"logits": 1, name: cache}) is cache
    assert returned_cache({"logits": 1}) is None
