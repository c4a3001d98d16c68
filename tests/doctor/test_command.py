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
from djl_python.doctor.processor import building
from djl_python.doctor.resources import disk, ports
from djl_python.doctor.settings import settings
from djl_python.engine.devices import torch_build
from djl_python.engine.devices.torch_build import Gpu, TorchBuild
from djl_python.engine.native.compiling import PROCESSORS

Findings = dict[str, dict[str, Any]]


def examined(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "djl_python", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_a_machine_that_serves() -> None:
    done = examined("--json", OPTION_DTYPE="bf16", OPTION_HF_TOKEN="hf_abcdefghij")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["broken"] == 0
    values = {finding["name"]: finding["value"] for finding in report["findings"]}
    assert values["djl-serving"] == djl_python.__version__
    assert values.keys() >= {"Python", "torch", "tornado", "kernels", "threads", "GPU", "memory", "downloads", "vllm"}
    assert values["OPTION_DTYPE"] == "bf16" and values["OPTION_HF_TOKEN"] == "********"


def test_a_missing_compiler_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not PROCESSORS:
        pytest.skip("there are no kernels for this machine")
    monkeypatch.setenv("PATH", str(tmp_path))
    (without,) = building()
    assert "missing: a C++ compiler" in without.value and "apt install g++" in without.value
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'fatal error: vector: No such file or directory' >&2\nexit 1\n")
    broken.chmod(0o755)
    (without,) = building()
    assert "missing: fatal error: vector: No such file" in without.value
    broken.write_text("#!/bin/sh\nexit 0\n")
    (ready,) = building()
    assert "can compile this processor's kernels" in ready.value


def test_broken_settings_are_reported_with_their_remedy() -> None:
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


def test_the_test_machines_disk_and_settings_are_not_broken() -> None:
    assert all(finding.level is not Level.BROKEN for finding in [*disk(), *settings(ServerConfig())])


def test_a_gpu_without_what_its_graphs_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = Gpu("A GPU", "9.0", free_bytes=9, total_bytes=9, has_bf16=True)
    monkeypatch.setattr(torch_build, "torch_build", lambda: TorchBuild("2.13.0", "CUDA 13.0", 2, (gpu,)))
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = {finding.name: finding for finding in torch_and_gpus()}
    assert findings["GPU 0"].level is Level.OK
    assert findings["C compiler"].level is Level.HINT and "gcc" in findings["C compiler"].advice
    (tmp_path / "gcc").touch(0o755)
    assert "C compiler" not in {finding.name for finding in torch_and_gpus()}
