"""Steps as CUDA graphs: recorded once for each of some sizes, replayed with other numbers. Engine process, on GPUs.

A model's operations are launched one by one from Python, which takes the host some 30 ms a step however few tokens
there are. A graph is launched at once. A step of any mixture of prompts and decoding sequences runs as one, if its
tokens are not more than are recorded; longer prompts keep the GPU busy for about as long as their launches take.
"""

from __future__ import annotations

import gc
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..batch.chunk import Chunk
from .token_plan import AttendByToken, TokenPlan, numbers_for
from .torch_cache import TorchCache

#: Tokens of the steps that are recorded. Each token reads all of its context by itself, which is why there are no more.
SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class Forward(Protocol):
    """The model's forward pass over a paged cache."""

    def __call__(self, plan: TokenPlan) -> Tensor:
        """(rows, vocabulary) logits of the plan's `keep`."""
        ...


class StepGraphs:
    """The recorded steps of a model.

    Args:
        forward: what is recorded.
        max_rows: most positions of a step whose logits are wanted.
        max_blocks: most blocks that a step's sequences have together.
    """

    def __init__(
        self, forward: Forward, cache: TorchCache, device: torch.device, max_rows: int, max_blocks: int
    ) -> None:
        from triton.errors import TritonError  # it comes with torch for GPUs

        from .token_attention import attend_by_token

        self._kernel_errors = (TritonError,)
        self._forward = forward
        self._cache = cache
        self._device = device
        self._max_rows = max_rows
        self._by_token: AttendByToken = attend_by_token
        most = numbers_for(SIZES[-1], min(SIZES[-1], max_rows))
        self._numbers = torch.zeros(most + max_blocks + 1, dtype=torch.long, device=device)
        self._recorded: dict[int, tuple[TokenPlan, torch.cuda.CUDAGraph]] = {}
        self._logits = torch.empty(0, device=device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, sizes: tuple[int, ...] = SIZES) -> None:
        """Record steps of so many tokens, the largest first: the others then fit its memory.

        Raises:
            RuntimeError: they can't be recorded.
        """
        gc.collect()
        gc.disable()  # a graph that is collected while another is recorded would spoil that
        try:
            for tokens in sorted(sizes, reverse=True):
                self._step(tokens)
        except self._kernel_errors as exc:
            raise RuntimeError(str(exc).strip().splitlines()[-1]) from exc
        finally:
            gc.enable()

    def run(self, chunks: list[Chunk], keep: npt.NDArray[np.int64]) -> Tensor | None:
        """Compute the chunks, one after the other.

        Args:
            keep: rows of the flat batch whose logits are wanted.

        Returns:
            (len(keep), vocabulary), which the next run overwrites; None if no step of this size is recorded.
        """
        tokens = sum(chunk.length for chunk in chunks)
        size = next((size for size in SIZES if size >= tokens), None)
        if size is None:
            return None
        plan, graph = self._step(size)
        if not plan.fill(chunks, keep):
            return None
        graph.replay()
        return self._logits[: len(keep)]

    def _step(self, tokens: int) -> tuple[TokenPlan, torch.cuda.CUDAGraph]:
        found = self._recorded.get(tokens)
        if found is None:
            found = self._recorded[tokens] = self._record(tokens)
        return found

    def _record(self, tokens: int) -> tuple[TokenPlan, torch.cuda.CUDAGraph]:
        """Record a step, of tokens that nobody reads."""
        rows = min(tokens, self._max_rows)
        plan = TokenPlan(self._numbers, tokens, rows, self._cache.block_size, self._cache.spare_block, self._by_token)
        plan.fill([], np.zeros(0, np.int64))
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            # Libraries and Triton make what they need at their first call, which can't be recorded.
            logits = self._forward(plan)
            if not len(self._logits):  # one tensor for all sizes
                self._logits = logits.new_empty(min(SIZES[-1], self._max_rows), logits.shape[1])
            del logits
            torch.cuda.synchronize(self._device)
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._logits[:rows].copy_(self._forward(plan))
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return plan, graph
