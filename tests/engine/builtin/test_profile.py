"""The profiler: it says where a step's time goes, also where a step is only launched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from djl_python.engine.builtin.profile import Timed, measure
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")],
        ),
    ],
)
def test_a_steps_phases_and_operators(device: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    settings = BuiltInSettings(
        model_path=str(path), device=device, kernels="torch", threads=1, max_batch_size=3, kv_cache_memory_mb=16
    )
    result = measure(settings, context=20, steps=2)
    assert 0 < result["model"] < result["step"]
    assert result["operators"]["linear"] > 0
    assert result["floor"] > 0


def test_a_gpus_time_is_counted_when_its_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append(f"waited for {device}"))
    timed = Timed(lambda: order.append("launched"), torch.device("cuda:0"))
    timed()
    assert order == ["launched", "waited for cuda:0"]
    assert len(timed.seconds) == 1
