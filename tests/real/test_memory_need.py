"""What `djl-serving check` says of memory, compared with what a model takes."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from djl_python.config import ModelSpec, ServerConfig
from djl_python.engine.builtin.memory_need import memory_need
from djl_python.sources import load_model_config
from djl_python.testing import running_server

CACHE = {"OPTION_KV_CACHE_MEMORY_MB": "512"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"OPTION_DTYPE": "fp32"},
        {"OPTION_QUANTIZE": "int8"},
        {"OPTION_QUANTIZE": "int4"},
        {"OPTION_KERNELS": "torch"},
    ],
    ids=str,
)
def test_a_worker_takes_what_was_said(smol: Path, setting: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    environment = {**CACHE, **setting}
    config = load_model_config(ModelSpec(name="smol", url=str(smol)), ServerConfig(), environment)
    need = memory_need(config, smol)
    assert need is not None
    with running_server("-m", f"smol={smol}", environment=environment) as server:
        workers = psutil.Process(server.process.pid).children(recursive=True)
        assert len(workers) == 2
        status = [Path("/proc", str(process.pid), "status").read_text() for process in workers]
    assert need.loaded == pytest.approx(kibibytes("VmRSS", status), rel=0.15)
    assert need.peak == pytest.approx(kibibytes("VmHWM", status), rel=0.15)


def kibibytes(name: str, status: list[str]) -> int:
    """A line of /proc/*/status, of several processes together, in bytes."""
    return sum(int(line.split()[1]) << 10 for text in status for line in text.splitlines() if line.startswith(name))
