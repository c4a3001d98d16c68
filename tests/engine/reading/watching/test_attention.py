"""What an attention of the model's own is seen to do, and what is not guessed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig
from transformers.models.bloom import modeling_bloom

from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.reading.recipe.primitives import NotUnderstoodError
from djl_python.engine.reading.watching.attention import alibi_slopes
from tests.checkpoints import OWN_ATTENTION, build_checkpoint


@pytest.mark.parametrize("heads", [1, 6, 8, 14, 71, 112])
def test_slopes_are_those_of_transformers(heads: int) -> None:
    theirs = modeling_bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    assert torch.allclose(alibi_slopes(heads), theirs)


def biased(path: Path, bias: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> list[float] | None:
    """The slopes that are read in a BLOOM that has this bias: (heads, 1, positions) of what it had."""
    model = AutoModelForCausalLM.from_pretrained(build_checkpoint(path, "bloom"), dtype=torch.float32).eval()
    attention = modeling_bloom.BloomAttention
    own = attention.forward
    monkeypatch.setattr(attention, "forward", lambda *given, alibi, **named: own(*given, alibi=bias(alibi), **named))
    slopes = read_recipe(model, 64).attentions[0].slopes
    return None if slopes is None else slopes.tolist()


def test_a_model_without_alibi_has_no_slopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert biased(tmp_path, torch.zeros_like, monkeypatch) is None


def test_slopes_of_other_bases_and_precisions_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the exponents."""
    slopes = biased(tmp_path, lambda bias: bias * torch.tensor([2.0, 4, 8, 16])[:, None, None], monkeypatch)
    assert slopes == pytest.approx([2**-1, 2**-2, 2**-3, 2**-4])


def test_large_scores_do_not_hide_slopes() -> None:
    """Falcon-RW's are divided by the root of the heads' size."""
    config = FalconConfig(
        vocab_size=517, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, alibi=True, multi_query=False,
        parallel_attn=False, bias=True, initializer_range=0.1,
    )  # fmt: skip
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config).eval()
    expected = (alibi_slopes(4) / 8).tolist()
    for each in read_recipe(model, 64).attentions:
        assert each.slopes is not None
        assert each.slopes.tolist() == pytest.approx(expected, rel=1e-2)


def test_configured_slopes_that_are_not_seen_are_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may hide them."""
    monkeypatch.setattr(BloomConfig, "alibi", True, raising=False)
    with pytest.raises(NotUnderstoodError, match="configured, but not seen"):
        biased(tmp_path, torch.zeros_like, monkeypatch)


@pytest.mark.parametrize(
    ("bias", "reason"),
    [
        (torch.square, "more than a product, a factor and a bias|unknown kind"),
        (lambda bias: -bias, "unknown kind"),
        (lambda bias: bias * math.pi, "unknown kind"),
        (lambda bias: bias.index_fill(2, torch.tensor([2]), -1e9), "a mask that is not causal"),
    ],
)
def test_a_bias_that_is_not_alibi_is_refused(
    bias: Callable[[Tensor], Tensor], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotUnderstoodError, match=reason):
        biased(tmp_path, bias, monkeypatch)


def test_a_model_that_cannot_be_watched_is_not_read(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(build_checkpoint(tmp_path, "bloom")).eval()
    model.transformer.h[1].register_forward_pre_hook(lambda *_: {"something": 1}["nothing"])
    with pytest.raises(NotUnderstoodError, match="KeyError"):
        read_recipe(model, 64)


def test_clipped_queries_are_not_read_though_nothing_is_clipped(tmp_path: Path) -> None:
    config = OWN_ATTENTION["mpt"]()
    config.attn_config.clip_qkv = 1e3
    with pytest.raises(NotUnderstoodError, match="are clipped"):
        read_recipe(AutoModelForCausalLM.from_config(config).eval(), 64)
