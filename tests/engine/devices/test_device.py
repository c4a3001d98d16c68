"""What an engine computes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from djl_python.core.errors import ModelLoadError
from djl_python.engine.devices.device import pick_device, prepare_device, slow_format


@pytest.mark.parametrize(("there", "kind"), [(True, "cuda"), (False, "cpu")])
def test_a_gpu_is_chosen_if_there_is_one(there: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert pick_device("auto") == torch.device(kind)
    assert pick_device("cpu") == torch.device("cpu")


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelLoadError, match=r"^option\.device=cuda:63: .+$"):
        pick_device("cuda:63")


@pytest.mark.parametrize(
    ("capability", "asked", "instead"),
    [((7, 5), "auto", torch.float16), ((7, 5), "bf16", None), ((8, 0), "auto", None), ((9, 0), "auto", None)],
)
def test_a_gpu_that_does_not_multiply_bf16_computes_in_fp16(
    capability: tuple[int, int], asked: str, instead: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    slow = slow_format(torch.device("cuda"), asked)
    assert (None if slow is None else slow.instead) == instead


def cudnn_attends() -> bool:
    return torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-any-return, no-untyped-call]


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """The devices that become current, on a machine that need not have them."""
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    enabled = cudnn_attends()
    yield devices
    torch.backends.cuda.enable_cudnn_sdp(enabled)


@pytest.mark.parametrize(("name", "expected"), [("cuda:1", [torch.device("cuda:1")]), ("cuda", []), ("cpu", [])])
def test_the_gpu_that_was_chosen_is_the_current_one(
    name: str, expected: list[torch.device], current: list[torch.device]
) -> None:
    prepare_device(torch.device(name))
    assert current == expected


def test_attention_on_a_gpu_is_not_cudnns(current: list[torch.device]) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    prepare_device(torch.device("cuda:0"))
    assert not cudnn_attends()
