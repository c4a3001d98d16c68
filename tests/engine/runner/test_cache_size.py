"""How many blocks fit, and what is said when few do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from djl_python.core.errors import ModelLoadError
from djl_python.engine.attention.parameters import LayerShape
from djl_python.engine.checkpoints.draft_size import NO_DRAFT, DraftMemory
from djl_python.engine.checkpoints.loading import LoadedModel, load_model
from djl_python.engine.runner.cache_size import size_cache
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint

MIB = 1 << 20
# A block of 16 tokens has 2 (keys and values) x 16 x 4 heads x 64 numbers of 4 bytes a layer: 32 KiB, in two layers 64.
LAYERS = {0: LayerShape(8, 4, 64, 64), 1: LayerShape(8, 4, 64, 64)}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = build_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    return load_model(BuiltInSettings(model_path=str(path), dtype="fp32", device="cpu"), lambda *_: None)


def settings(**more: Any) -> BuiltInSettings:
    return BuiltInSettings(
        **{"model_path": "m", "max_batch_size": 4, "block_size": 16, "kv_cache_memory_mb": 1, **more}
    )


def test_no_more_blocks_than_the_batch_can_use(loaded: LoadedModel) -> None:
    size = size_cache(settings(kv_cache_memory_mb=100), loaded, LAYERS, 33)
    assert (size.blocks, size.length) == (4 * 3, 33)


def test_blocks_follow_the_memory_and_a_sequence_the_blocks(
    loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    size = size_cache(settings(), loaded, LAYERS, 1000)
    assert (size.blocks, size.length) == (16, 256)
    assert "a sequence can't use the whole context of 1000" in caplog.text
    assert size.description == "context 256, KV cache 16 blocks of 16 tokens (1 MiB)"


def test_a_number_of_blocks_that_was_set_is_the_number(loaded: LoadedModel) -> None:
    assert size_cache(settings(kv_blocks=99), loaded, LAYERS, 1000).blocks == 99


def test_a_cache_that_memory_will_not_hold_is_told(loaded: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    size_cache(settings(kv_blocks=1 << 20), loaded, LAYERS, 1000)
    assert re.search(r"the KV cache may grow to 65536 MiB, and \d+ MiB are free: see option\.kv_cache", caplog.text)


def test_states_take_their_part(loaded: LoadedModel) -> None:
    size = size_cache(settings(kv_cache_memory_mb=3), loaded, LAYERS, 1000, state_bytes=MIB // 2)
    assert size.blocks == 16
    assert size.description == "context 256, KV cache 16 blocks of 16 tokens (1 MiB) and 4 states (2 MiB)"


def test_saved_states_take_a_quarter_at_most(loaded: LoadedModel) -> None:
    size = size_cache(settings(kv_cache_memory_mb=8), loaded, LAYERS, 1000, state_bytes=MIB, saves=True)
    assert size.saved_states == 2
    assert size.description.endswith("and 6 states (6 MiB)")
    assert size_cache(settings(kv_cache_memory_mb=80), loaded, LAYERS, 1000, MIB, saves=True).saved_states == 4


def test_no_room_at_all_says_what_to_set(loaded: LoadedModel) -> None:
    with pytest.raises(ModelLoadError, match=r"16 tokens takes 0\.1 MiB, and the states of 4 sequences 1\.0 MiB; set"):
        size_cache(settings(), loaded, LAYERS, 1000, state_bytes=MIB // 4)
    with pytest.raises(ModelLoadError, match=r"a block of 512 tokens takes 2\.0 MiB; set option\.kv_cache_memory_mb"):
        size_cache(settings(block_size=512), loaded, LAYERS, 1000)


def test_the_smallest_cache_has_the_two_blocks_of_a_trial(loaded: LoadedModel) -> None:
    size = size_cache(settings(max_batch_size=1, kv_cache_memory_mb=100), loaded, LAYERS, 16)
    assert (size.blocks, size.length) == (2, 16)


def test_a_draft_model_has_its_share_of_the_memory(loaded: LoadedModel) -> None:
    assert size_cache(settings(), loaded, LAYERS, 1000).blocks == 16
    draft = DraftMemory(token_bytes=3 * 4096)  # three times as much as the model's own 4 KiB
    assert size_cache(settings(), loaded, LAYERS, 1000, draft=draft).blocks == 4


class Gpu:
    """A GPU of 100 MiB, of which this process has 10; other numbers are what else is used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
        self.others_mib = 0
        self.loaded = replace(loaded, device=torch.device("cuda"))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ((90 - self.others_mib) * MIB, 100 * MIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * MIB)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def blocks(self, step_mib: int = 0, draft: DraftMemory = NO_DRAFT, **more: Any) -> int:
        """Blocks of 64 KiB, for contexts that nothing but memory bounds."""
        given = settings(kv_cache_memory_mb=None, **more)
        return size_cache(given, self.loaded, LAYERS, 1 << 20, draft=draft, step_bytes=step_mib * MIB).blocks


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel) -> Gpu:
    return Gpu(monkeypatch, loaded)


def test_a_step_has_its_share_of_a_gpus_memory_and_copies_of_two_layers(gpu: Gpu) -> None:
    """Both layers here: blocks take twice their size."""
    assert gpu.blocks() == 80 * 8
    assert gpu.blocks(step_mib=20) == 60 * 8
    assert gpu.blocks(gpu_memory_utilization=0.6, step_mib=20) == 30 * 8
    assert gpu.blocks(step_mib=20, draft=DraftMemory(weight_bytes=10 * MIB)) == 50 * 8


def test_memory_that_was_set_is_all_for_keys_and_values(gpu: Gpu) -> None:
    given = settings(kv_cache_memory_mb=4)
    assert size_cache(given, gpu.loaded, LAYERS, 1 << 20, step_bytes=20 * MIB).blocks == 4 * 16


def test_workers_on_one_gpu_have_the_same_share_whoever_comes_first(gpu: Gpu) -> None:
    first = gpu.blocks(workers=2)
    gpu.others_mib = 45
    assert gpu.blocks(workers=2) == first == 35 * 8


def test_gpu_memory_of_other_processes_is_not_counted_on(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    gpu.others_mib = 4
    assert gpu.blocks() == 80 * 8
    assert not caplog.records[1:]  # beside that of the context
    gpu.others_mib = 45
    assert gpu.blocks() == 40 * 8
    assert "40 MiB are left for this cache, not the 80 MiB that option.gpu_memory_utilization says" in caplog.text
