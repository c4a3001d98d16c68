"""`djl-serving doctor` on this machine, as it is and as it might be."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import djl_python
from djl_python.config import Address, ServerConfig
from djl_python.doctor.devices import torch_and_gpus
from djl_python.doctor.finding import Level
from djl_python.doctor.resources import disk, ports
from djl_python.doctor.settings import settings
from djl_python.engine.devices import torch_build
from djl_python.engine.devices.torch_build import Gpu, TorchBuild

Findings = dict[str, dict[str, Any]]


def examined(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "djl_python", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_a_machine_that_serves() -> None:
    done = examined("--json", OPTION_DTYPE="bf16", OPTION_HF_TOKEN="hf_abcdefghij")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["broken"] == 0
    found = {finding["name"]: finding["value"] for finding in report["findings"]}
    assert found["djl-serving"] == djl_python.__version__
    assert found.keys() >= {"Python", "torch", "tornado", "kernels", "threads", "GPU", "memory", "downloads", "vllm"}
    assert found["OPTION_DTYPE"] == "bf16" and found["OPTION_HF_TOKEN"] == "********"


def test_what_is_broken_is_told_with_what_to_do() -> None:
    done = examined(
        OPTION_DTYPE="fp12", OPTION_DTPYE="bf16", SERVING_JOB_QUEUE_SIZE="0", SERVING_DOWNLOAD_DIR="/dev/null/x"
    )
    assert done.returncode == 1
    broken = done.stdout[done.stdout.index("\nbroken\n") :]
    for told in (
        "option.dtype=fp12: expected",
        "job_queue_size=0: expected",
        "downloads: /dev/null/x",
        "set SERVING_DOWNLOAD_DIR",
        "option.dtpye is not known, only handlers may read it; did you mean option.dtype?",
    ):
        assert told in broken


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (used,) = ports(ServerConfig(inference_address=Address(port=port)))
    assert used.level is Level.HINT and "in use" in used.value
    (free,) = ports(ServerConfig(inference_address=Address(port=port)))
    assert free.level is Level.OK
    (wrong,) = ports(ServerConfig(inference_address=Address(host="192.0.2.1")))
    assert wrong.level is Level.BROKEN


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    config = ServerConfig(inference_address=Address(unix_path=str(path)))
    assert [finding.level for finding in ports(config)] == [Level.OK]
    path.touch()
    assert [finding.level for finding in ports(config)] == [Level.HINT]


def test_this_machine_has_room_and_settings() -> None:
    assert all(finding.level is not Level.BROKEN for finding in [*disk(), *settings(ServerConfig())])


def test_a_gpu_without_what_its_graphs_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = Gpu("A GPU", "9.0", free_bytes=9, total_bytes=9, has_bf16=True)
    monkeypatch.setattr(torch_build, "torch_build", lambda: TorchBuild("2.13.0", "CUDA 13.0", 2, (gpu,)))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {finding.name: finding for finding in torch_and_gpus()}
    assert found["GPU 0"].level is Level.OK
    assert found["C compiler"].level is Level.HINT and "gcc" in found["C compiler"].advice
    (tmp_path / "gcc").touch(0o755)
    assert "C compiler" not in {finding.name for finding in torch_and_gpus()}
