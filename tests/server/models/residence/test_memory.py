"""What models need of the machine's memory, estimated and measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from djl_python.core.engine_info import EngineInfo
from djl_python.server.models.residence.memory import (
    PROCESSES_BYTES,
    device_bytes,
    estimated_bytes,
    measured_bytes,
)
from tests.server.harness import model_config

MIB = 1 << 20
#: A process that holds so much, and starts another that holds as much.
_HOLDER = """
import subprocess, sys
held = bytearray(b"x" * (int(sys.argv[1]) << 20))
if len(sys.argv) > 2:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    child.stdout.readline()
print("held", flush=True)
sys.stdin.read()
"""


def checkpoint(directory: Path, **files: int) -> Path:
    """A checkpoint whose files have these sizes; "__" in a name is a dot."""
    (directory / "config.json").write_text("{}")
    for name, size in files.items():
        with (directory / name.replace("__", ".")).open("wb") as file:
            file.truncate(size)
    return directory


def test_an_estimate_is_the_weights_and_the_processes_of_each_worker(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, a__safetensors=3 * MIB, b__safetensors=4 * MIB)
    config = model_config(min_workers=2)
    assert estimated_bytes(msgspec.structs.replace(config, path=str(path))) == 2 * (PROCESSES_BYTES + 7 * MIB)


def test_weights_in_several_forms_count_once(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, model__safetensors=3 * MIB, pytorch_model__bin=5 * MIB)
    config = model_config(option={"model_id": str(path)})
    assert estimated_bytes(config) == PROCESSES_BYTES + 3 * MIB


def test_a_model_without_a_checkpoint_counts_as_what_is_in_its_directory(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    (tmp_path / "weights.pt").write_bytes(bytes(MIB))
    assert estimated_bytes(msgspec.structs.replace(model_config(), path=str(tmp_path))) == PROCESSES_BYTES + MIB
    missing = model_config(option={"model_id": str(tmp_path / "none")})
    assert estimated_bytes(missing) == PROCESSES_BYTES


def test_a_workers_memory_is_that_of_all_it_has_started() -> None:
    command = [sys.executable, "-c", _HOLDER, "64", _HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        measured = measured_bytes([process.pid, 1 << 30])
        assert 128 * MIB < measured[process.pid] < 256 * MIB and measured[1 << 30] == 0
        process.communicate()


def test_memory_of_a_gpu_counts_where_there_is_one() -> None:
    assert device_bytes(None) == 0
    assert device_bytes(EngineInfo(device="cpu", weight_bytes=5, cache_bytes=7)) == 0
    assert device_bytes(EngineInfo(device="cuda:0", weight_bytes=5, cache_bytes=7)) == 12
