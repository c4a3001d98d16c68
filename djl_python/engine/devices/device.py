"""The device that an engine computes on, and its fast number formats. Runs in the engine process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from ...core.errors import MachineLoadError, ModelLoadError

# Compute capability (Ampere) from which a GPU does. Below, torch's fused attention doesn't take bf16 either.
MULTIPLIES_BF16: Final = (8, 0)


def pick_device(name: str) -> torch.device:
    """`option.device`; "auto" is the first GPU if there is one.

    Raises:
        ModelLoadError: there are no such devices.
        MachineLoadError: this machine has no such device, or the device does not answer.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as exc:
        raise ModelLoadError(f"option.device={name}: {str(exc).splitlines()[0]}") from exc
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as exc:
        raise MachineLoadError(f"option.device={name}: {str(exc).splitlines()[0]}") from exc
    return device


def prepare_device(device: torch.device) -> None:
    """Set torch's process-wide state."""
    if device.type != "cuda":
        return
    if device.index is not None:  # libraries that name no device use the current one
        torch.cuda.set_device(device)
    # From H100 on, cuDNN's attention is torch's first choice. It makes a plan for every new shape, which takes half a
    # second, and contexts have a new shape in each step; on B200 it is silently wrong with fewer than 8 key heads
    # (pytorch #193893).
    torch.backends.cuda.enable_cudnn_sdp(False)


@dataclass(frozen=True)
class SlowFormat:
    """A number format that a device only emulates, and the one that is computed in instead."""

    dtype: torch.dtype
    instead: torch.dtype
    warning: str


def slow_format(device: torch.device, asked: str) -> SlowFormat | None:
    """The requested format, if the device only emulates it; None if it does not.

    Args:
        asked: `option.dtype`. fp16 is asked for in directories made for GPUs, so that it says nothing about a CPU; who
            asks an old GPU for bf16 wants its range.
    """
    if device.type == "cpu":
        return SlowFormat(
            torch.float16, torch.bfloat16, "fp16 is computed as bf16 on a CPU; option.dtype=fp32 keeps every bit"
        )
    if device.type == "cuda" and asked == "auto" and torch.cuda.get_device_capability(device) < MULTIPLIES_BF16:
        return SlowFormat(
            torch.bfloat16,
            torch.float16,
            "bf16 is computed as fp16 on this GPU, which has none; option.dtype=bf16 or fp32 keeps bf16's range",
        )
    return None
