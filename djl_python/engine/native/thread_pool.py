"""The kernels' threads, which run operations. Runs in the engine process."""

from __future__ import annotations

import ctypes
from typing import Final

import torch

from .abi.enums import Kind
from .abi.operations import OperationArray
from .abi.step_inputs import StepInputs
from .library import KernelsUnavailableError, library

#: Dtypes of weights and activations that the kernels support.
FORMATS: Final = (torch.bfloat16, torch.float32)
_SPINS: Final = 200
_OFTEN_SPINS: Final = 4000


class ThreadPool:
    """Threads that run lists of operations together with the thread that calls `run`.

    Attributes:
        vectors: the kernels' instruction set: "AVX-512 and AMX", "AVX-512", "AVX2" or "NEON".

    Args:
        often: calls mostly follow at once, so threads spin for up to a tenth of a millisecond before they sleep.

    Raises:
        KernelsUnavailableError: no kernels, or fewer threads than asked for.
    """

    def __init__(self, threads: int, *, often: bool = False) -> None:
        self._library = library()
        self.vectors: str = self._library.djl_vectors().decode()
        self._handle: int | None = self._library.djl_pool(threads, _OFTEN_SPINS if often else _SPINS)
        if self._handle is None:
            raise KernelsUnavailableError(f"the system does not give {threads} threads")

    def run(
        self,
        operations: OperationArray,
        step: StepInputs,
        *,
        count: int | None = None,
        late: StepInputs | None = None,
        bf16: bool = False,
    ) -> None:
        """Run operations; returns when all are done. Not thread-safe.

        Args:
            count: run the first so many only.
            late: the inputs of late operations, whose tokens are the rows whose logits are wanted.
        """
        count = len(operations) if count is None else count
        after = None if late is None else ctypes.byref(late)
        self._library.djl_run(self._handle, operations.address, count, ctypes.byref(step), after, int(bf16))

    def parts(self, steps: int) -> int:
        """How many parts a panel of `steps` 32-bit lanes along k is multiplied in."""
        return int(self._library.djl_parts(steps))

    def codes_bytes(self, k: int, for_blocks: bool = False) -> int:
        """Bytes of a row of k activations that are quantized to integers, for weights in groups or in blocks."""
        return int(self._library.djl_codes_bytes(k, int(for_blocks)))

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far, by kind of operation."""
        spent = (ctypes.c_double * len(Kind))()
        self._library.djl_seconds(self._handle, spent)
        return {kind.name.lower(): seconds for kind, seconds in zip(Kind, spent, strict=True)}

    def close(self) -> None:
        """End the threads; nothing runs after that."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.djl_pool_close(handle)
