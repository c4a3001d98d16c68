"""A release of transformers that lacks one of the names the engine uses is told by that name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
import transformers

from djl_python.engine.transformers_private import (
    NEWEST_TRIED,
    NotInitialized,
    WeightConversions,
    attention_name,
    by_number,
    ignore_when_loading,
    newer_than_tried,
    remove_mask_function,
)

ROOT: Final = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "name",
    [
        "AttentionMaskInterface._global_mapping",
        "PreTrainedModel._no_split_modules",
        "PreTrainedModel._keys_to_ignore_on_load_unexpected",
        "PreTrainedConfig._attn_implementation",
        "conversion_mapping.get_model_conversion_mapping",
        "core_model_loading.Concatenate",
        "core_model_loading.MergeModulelist",
        "core_model_loading.WeightConverter",
        "core_model_loading.dot_natural_key",
        "core_model_loading.rename_source_key",
    ],
)
def test_transformers_has_each_private_name_that_is_used(name: str) -> None:
    parent, _, attribute = name.rpartition(".")
    owner = getattr(transformers, parent) if parent[0].isupper() else import_module(f"transformers.{parent}")
    assert hasattr(owner, attribute), f"transformers {transformers.__version__} has no {name}"


@pytest.mark.parametrize("release", ["5.9.0", "5.24.0", "5.24.3"])
def test_a_release_that_was_tried_is_not_warned_of(release: str) -> None:
    assert newer_than_tried(release) == ""


@pytest.mark.parametrize("release", ["5.25.0", "5.25.0.dev0", "6.0"])
def test_a_release_newer_than_those_tried_is_warned_of_and_not_refused(release: str) -> None:
    assert newer_than_tried(release).startswith(f"transformers {release} is newer than 5.24, the newest that was tried")


def test_the_newest_release_that_was_tried_is_the_one_that_make_installs() -> None:
    installed = re.search(r"^transformers==(.+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert installed is not None and newer_than_tried(installed[1]) == ""
    assert installed[1].startswith(f"{NEWEST_TRIED}.")


def test_a_loaded_weight_is_not_initialized_again() -> None:
    from transformers import initialization

    class Loaded(NotInitialized):
        data = torch.ones(2)

    weight: Any = Loaded()
    initialization.zeros_(weight)
    assert weight.data.tolist() == [1, 1]


@pytest.mark.parametrize("ignored", [None, ["a"], {"a"}])
def test_names_are_ignored_in_the_collection_that_transformers_has(ignored: Any) -> None:
    """It adds its own to them: older versions a list to a list, newer ones a set to a set."""
    model = SimpleNamespace(_keys_to_ignore_on_load_unexpected=ignored)
    ignore_when_loading(model, {"b"})
    names = model._keys_to_ignore_on_load_unexpected
    assert type(names) is type(ignored or [])
    assert set(names) == {*(ignored or ()), "b"}


def test_a_mask_function_can_be_removed() -> None:
    table = transformers.AttentionMaskInterface()
    transformers.AttentionMaskInterface.register("ours", lambda **_: None)
    assert "ours" in table
    remove_mask_function("ours")
    assert "ours" not in table


def test_a_model_tells_the_name_of_its_attention() -> None:
    config = transformers.LlamaConfig(attn_implementation="eager")
    assert attention_name(config) == "eager"


def test_experts_are_combined_in_the_order_of_their_numbers() -> None:
    assert by_number(["experts.10.w", "experts.9.w"]) == ["experts.9.w", "experts.10.w"]


def test_experts_of_a_checkpoint_are_stacked_to_one_weight() -> None:
    config = transformers.Qwen2MoeConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        intermediate_size=8, moe_intermediate_size=8, shared_expert_intermediate_size=8, num_experts=2,
        num_experts_per_tok=1,
    )  # fmt: skip
    conversions = WeightConversions(transformers.AutoModelForCausalLM.from_config(config))
    targets = [
        conversions.target_of(f"model.layers.0.mlp.experts.1.{name}.weight") for name in ("up_proj", "down_proj")
    ]
    assert [name for name, *_ in targets] == [
        f"model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")
    ]
    for _, pattern, converter in targets:
        assert converter is not None and converter.stacks_experts and pattern in converter.patterns


def test_a_weight_that_is_stored_as_it_is_has_no_converter() -> None:
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    conversions = WeightConversions(transformers.AutoModelForCausalLM.from_config(config))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert conversions.target_of(name) == (name, None, None)
