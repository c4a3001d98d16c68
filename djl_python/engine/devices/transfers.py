"""Numbers from the host to the device. Runs in the engine process.

A plain copy to a GPU waits until the GPU has finished all earlier work. A non-blocking copy is queued like a kernel;
from unpinned memory, it has read the numbers when it returns, so that they may change or be freed.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(numbers: npt.NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """The same numbers on the device; on a CPU, the same memory."""
    tensor = torch.from_numpy(numbers) if isinstance(numbers, np.ndarray) else numbers
    return tensor.to(device, non_blocking=True)


def indices(numbers: Sized, device: torch.device) -> Tensor:
    """A tensor of int64 to index with."""
    return upload(torch.tensor(numbers, dtype=torch.long), device)
