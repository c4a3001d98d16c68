"""vLLM's option.speculative_config, read as the engine's own options."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.config import ModelConfig
from djl_python.core.errors import ModelLoadError
from djl_python.engine.builtin.drafts import Drafts, drafts_of
from djl_python.engine.builtin.options import BuiltInOptions
from djl_python.engine.builtin.row import ENGINE


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('{"method": "ngram", "num_speculative_tokens": 4}', Drafts(looked_up=True, length=4)),
        ('{"model": "[ngram]"}', Drafts(looked_up=True)),
        ('{"model": "DIR", "num_speculative_tokens": 3}', Drafts(model="DIR", length=3)),
        ('{"method": "draft_model", "model": "a/b"}', Drafts(model="a/b")),
    ],
)
def test_where_drafts_come_from(said: str, expected: Drafts) -> None:
    assert drafts_of(BuiltInOptions(speculative_config=said)) == expected


def test_the_engines_own_options() -> None:
    assert drafts_of(BuiltInOptions()) == Drafts()
    assert drafts_of(BuiltInOptions(speculative="ngram", spec_length=2)) == Drafts(looked_up=True, length=2)
    assert drafts_of(BuiltInOptions(draft_model_id="DIR")) == Drafts(model="DIR")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            '{"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}',
            "prompt_lookup_max, prompt_lookup_min have",
        ),
        ('{"method": "eagle", "model": "x"}', "method 'eagle' is for vLLM (option.rolling_batch=vllm)"),
        ('{"decoding_type": "NGram"}', "there is no method and no model"),
    ],
)
def test_a_speculative_config_without_effect_has_a_remark(said: str, told: str) -> None:
    (remark,) = ENGINE.without_effect(ModelConfig(name="m"), BuiltInOptions(speculative_config=said))
    assert told in remark
    assert drafts_of(BuiltInOptions(speculative_config=said)).model == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative_config": "{"}, "option.speculative_config: not valid JSON"),
        ({"speculative_config": "[]"}, "option.speculative_config: expected an object"),
        ({"speculative_config": '{"model": 5}'}, "model: expected a text"),
        ({"speculative_config": '{"model": "x", "num_speculative_tokens": 0}'}, "expected an integer >= 1"),
        ({"speculative_config": '{"method": "ngram"}', "spec_length": 3}, "which are set too; expected one way"),
    ],
)
def test_an_unreadable_speculative_config_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        ENGINE.check(ModelConfig(name="m"), BuiltInOptions(**options))
