"""A draft model's share of the memory, told from its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from djl_python.engine.checkpoints.draft_size import NO_DRAFT, draft_size
from djl_python.engine.opening.open_model import open_model
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint


def test_without_a_draft_model_nothing(tmp_path: Path) -> None:
    assert draft_size(BuiltInSettings(model_path="m", speculative="ngram")) == NO_DRAFT


@pytest.mark.parametrize("dtype", ["auto", "fp32", "bf16"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "bloom"])
def test_weights_and_tokens_take_what_they_take_once_loaded(architecture: str, dtype: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, architecture, torch.bfloat16)
    settings = BuiltInSettings(
        model_path=str(path), dtype=dtype, kv_cache_memory_mb=1, max_batch_size=4096, kernels="auto", threads=1
    )
    size = draft_size(BuiltInSettings(model_path="m", speculative="draft", draft_model_path=str(path), dtype=dtype))
    opened = open_model(settings, lambda what, done, total: None)
    assert opened.memory.kv_blocks == 2**20 // (size.token_bytes * 16)
    stored = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert size.weight_bytes == (2 * stored if dtype == "fp32" else stored)


def test_a_draft_model_with_states_needs_no_kv_cache(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "mamba")
    settings = BuiltInSettings(model_path="m", speculative="draft", draft_model_path=str(path))
    assert draft_size(settings).token_bytes == 0
