"""Pages of a checkpoint go when they are not needed, and come back when they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from djl_python.engine.runner.file_mapping import release_pages, releasing_after_use

MIB = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    """No kernel runs here."""


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    size, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            size += int(line.split()[1]) << 10
    return size


def test_a_mapped_weight_leaves_memory_and_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    numbers = torch.arange(4 * MIB, dtype=torch.int32).view(torch.float32)
    save_file({"first": numbers, "second": numbers.clone()}, path)
    with safe_open(path, "pt") as file:
        first, second = file.get_tensor("first"), file.get_tensor("second")
    if not resident(path):
        pytest.skip("this torch copies what it loads: there is nothing to let go")
    assert torch.equal(first.view(torch.int32), second.view(torch.int32))
    assert resident(path) > 30 * MIB
    release_pages([first])
    assert resident(path) < 18 * MIB
    assert torch.equal(first.view(torch.int32), numbers.view(torch.int32))


def test_a_model_that_runs_lets_go_of_what_it_has_used(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)))
    path = tmp_path / "model.safetensors"
    save_file(model.state_dict(), path)
    x = torch.randn(1, 1024)
    with torch.inference_mode():
        expected = model(x)
        with safe_open(path, "pt") as file:
            for index, layer in enumerate(model):
                layer.weight.data = file.get_tensor(f"{index}.weight")
        with releasing_after_use(model):
            assert torch.equal(model(x), expected)
            assert torch.equal(model(x), expected)
        assert resident(path) <= 4 * MIB
        assert torch.equal(model(x), expected)
    assert not any(layer._forward_hooks for layer in model)


def test_other_memory_stays_as_it_is() -> None:
    own = torch.arange(MIB)
    release_pages([own])
    assert torch.equal(own, torch.arange(MIB))
