"""What is launched on a GPU, recorded to be launched again at once. Runs in the engine process, on GPUs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from .step_graphs import Recording

# Other threads may use the device meanwhile.
_ERROR_MODE: Final = "thread_local"


class CudaGraphs:
    """Records functions of one device; their graphs share memory, as only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do the work, and record it; returns what does it again, with whatever lies where it read then.

        Raises:
            RuntimeError: the host takes part in it.
        """
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), _without_collection():
            # Libraries and Triton make what they need at their first call, which can't be recorded.
            work()
            torch.cuda.synchronize(self._device)
            graph.capture_begin(pool=self._pool, capture_error_mode=_ERROR_MODE)
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return graph.replay


def cuda_recording(device: torch.device) -> Recording:
    """How steps are recorded on a GPU.

    Raises:
        ImportError: there is no Triton.
    """
    from triton.errors import TritonError  # it comes with torch for GPUs

    from .token_attention import attend_by_token

    record = CudaGraphs(device)

    def recorded(work: Callable[[], None]) -> Callable[[], None]:
        try:
            return record(work)
        except TritonError as exc:
            raise RuntimeError(str(exc).strip().splitlines()[-1]) from exc

    return Recording(attend_by_token, recorded)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Context in which no older graph is collected, which would spoil one that is being recorded."""
    enabled = gc.isenabled()  # an engine process does without until its model is loaded
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
