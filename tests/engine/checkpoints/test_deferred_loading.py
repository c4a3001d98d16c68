"""What transformers is told while it loads a checkpoint whose weights stay in the files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from djl_python.engine.checkpoints import deferred_loading


@pytest.mark.parametrize("ignored", [None, ["a"], {"a"}])
def test_names_are_ignored_in_the_collection_that_transformers_has(
    ignored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adds its own to them: older versions a list to a list, newer ones a set to a set."""
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    placing = SimpleNamespace(place=lambda: None, left={"b"})
    monkeypatch.setattr(deferred_loading, "_Placing", lambda *_: placing)
    checkpoint: Any = SimpleNamespace(method="awq")
    settings = deferred_loading.as_transformers_reads(checkpoint)
    quantizer = AUTO_QUANTIZER_MAPPING[settings["quant_method"]]
    model = SimpleNamespace(_keys_to_ignore_on_load_unexpected=ignored)
    given = SimpleNamespace(quantization_config=SimpleNamespace(checkpoint=checkpoint))
    quantizer._process_model_before_weight_loading(given, model)
    found = model._keys_to_ignore_on_load_unexpected
    assert type(found) is type(ignored or [])
    assert set(found) == {*(ignored or ()), "b"}
