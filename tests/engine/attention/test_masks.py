"""Windows that a model has in its masks only are its windows, and are not guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, Qwen2Config

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.attention.lookup import PAGED, register
from djl_python.engine.attention.masks import UNKNOWN, masks_with_windows, window_in
from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.reading.recipe.primitives import NotUnderstoodError
from djl_python.engine.torch_backend.paged_runner import probe
from tests.checkpoints import CACHE, VOCABULARY, build_checkpoint
from tests.engines import open_batch, run_to_end

WINDOW = 24
CPU = torch.device("cpu")


def paged(path: Path, architecture: str = "qwen2_moe_window") -> Any:
    register()
    model = AutoModelForCausalLM.from_pretrained(build_checkpoint(path, architecture)).eval()
    model.set_attn_implementation(PAGED)
    return model


def windows(model: Any, max_positions: int) -> list[int]:
    return [layer.window for layer in probe(model, CPU, max_positions)[0].values()]


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_tokens_beyond_a_window_of_the_mask_are_those_of_the_model(kernels: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "qwen2_moe_window")
    batch = open_batch(path, kernels=kernels)
    prompt = [(7 * i + 3) % VOCABULARY for i in range(2 * WINDOW)]
    batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=8, ignore_eos=True), id=0))
    got = [event.token_id for event in run_to_end(batch)[0]]
    batch.close()
    assert "KV cache" in batch.description
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + got]), use_cache=False).logits[0]
    assert got == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_both_ways_of_running_see_the_window_of_a_mask(tmp_path: Path) -> None:
    model = paged(tmp_path)
    assert windows(model, 256) == [WINDOW, 0, 0]
    assert [each.window for each in read_recipe(model, 256).attentions] == [WINDOW, 0, 0]


def own_mask(model: Any) -> None:
    """Let the last layer make its own mask."""

    def make(module: Any, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        tokens = named["hidden_states"].shape[1]
        return given, named | {"attention_mask": torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()}

    model.model.layers[-1].self_attn.register_forward_pre_hook(make, with_kwargs=True)


def test_a_mask_of_the_models_own_is_not_guessed(tmp_path: Path) -> None:
    model = paged(tmp_path)
    own_mask(model)
    with pytest.raises(ValueError, match="in a mask of its own"):
        windows(model, 256)
    with pytest.raises(NotUnderstoodError, match="a mask of its own"):
        read_recipe(model, 256)


@pytest.mark.parametrize(("architecture", "positions"), [("qwen2_moe_window", WINDOW), ("llama", 256)])
def test_a_mask_of_the_models_own_is_fine_where_no_window_matters(
    architecture: str, positions: int, tmp_path: Path
) -> None:
    model = paged(tmp_path, architecture)
    own_mask(model)
    assert windows(model, positions)[-1] == 0
    assert read_recipe(model, positions).attentions[-1].window == 0


def test_a_configured_window_that_is_not_used_is_none() -> None:
    register()
    config = Qwen2Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, use_sliding_window=False,
    )  # fmt: skip
    config.sliding_window = 8
    model = AutoModelForCausalLM.from_config(config).eval()
    model.set_attn_implementation(PAGED)
    assert windows(model, 256) == [0]
    assert [each.window for each in read_recipe(model, 256).attentions] == [0]


def told(kind: str) -> Any:
    from transformers import masking_utils

    config = MistralConfig(sliding_window=8, attention_chunk_size=8)
    config._attn_implementation = PAGED
    make = getattr(masking_utils, kind)
    return make(config=config, inputs_embeds=torch.zeros(1, 3, 4), attention_mask=None, **{CACHE: None})


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        ("create_causal_mask", 0),
        ("create_sliding_window_causal_mask", 8),
        ("create_chunked_causal_mask", UNKNOWN),
    ],
)
def test_only_a_window_is_told_as_one(kind: str, window: int) -> None:
    with masks_with_windows(PAGED):
        assert window_in(told(kind)) == window


def test_no_masks_are_made_but_while_a_model_is_watched() -> None:
    with masks_with_windows(PAGED):
        pass
    assert told("create_sliding_window_causal_mask") is None
