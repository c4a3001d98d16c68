"""The kernels' threads and the operations they run. Runs in the engine process; structures mirror the kernels'."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any, Final

import numpy as np
import torch

from ..reading.recipe_parts import NotUnderstoodError
from .library import UnavailableError, library

#: Dtypes of weights and activations that the kernels support.
FORMATS: Final = (torch.bfloat16, torch.float32)
#: `Activation` of program.h.
ACTIVATIONS: Final = {
    None: 0, "silu": 1, "gelu_tanh": 2, "gelu": 3, "relu": 4, "relu_squared": 5, "clamped_swiglu": 6, "quick_gelu": 7,
    "xielu": 8,
}  # fmt: skip
#: `NormKind` of program.h.
NORMS: Final = {"rms": 0, "layer": 1, None: 2}
_SPINS: Final = 200
_OFTEN_SPINS: Final = 4000


class Kind(IntEnum):
    """The kind of an operation: `Kind` of program.h."""

    EMBED = 0
    NORM = 1
    LINEAR = 2
    HEADS = 3
    ATTEND = 4
    GATHER = 5
    QUANTIZE = 6
    CHOOSE = 7
    PACK = 8
    ROUTE = 9
    SORT = 10
    DISPATCH = 11
    COMBINE = 12
    DELTA = 13
    CLEAR_VALUES = 14
    CONVOLVE = 15
    SCAN = 16
    NORM_ROWS = 17
    CONVOLVE_ROWS = 18
    DECAY = 19
    GATE = 20
    STEP_SIZES = 21
    SELECTIVE_SCAN = 22
    LATENTS = 23
    PICK = 24
    ROUND = 25


class Mode(IntEnum):
    """What is done with results: `Mode` of program.h."""

    STORE = 0
    ADD = 1
    STORE_FP32 = 2
    MAXIMA_ONLY = 3


_INTS: Final = (
    "kind", "late", "of_experts", "n", "k", "mode", "norm", "activation", "gated", "heads", "kv_heads", "dim",
    "value_dim", "rotary", "interleaved", "window", "format", "experts", "chosen", "stride", "pitch",
)  # fmt: skip
_POINTERS: Final = (
    "in_", "out", "weight", "bias", "weight2", "weight3", "cosines", "sines", "sinks", "slopes", "keys",
    "values", "routed", "maxima",
)  # fmt: skip


class Op(ctypes.Structure):
    """`Op` of program.h, which says what fields mean. Functions of `operations` make them."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in _INTS),
        *((name, ctypes.c_float) for name in ("eps", "scale", "softcap")),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    )


class Step(ctypes.Structure):
    """`Step` of program.h."""

    _fields_ = (
        ("tokens", ctypes.c_int32),
        ("wanted", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "rotary_rows", "slots", "rows")),
        ("tiles", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("tile_start", "tile_size", "tile_table", "blocks")),
        ("block_size", ctypes.c_int32),
        ("block_count", ctypes.c_int32),
        ("block_bytes", ctypes.c_int64),
        ("spans", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("span_start", "span_size", "span_source", "span_slot")),
        *((name, ctypes.c_void_p) for name in ("span_saves", "save_after", "save_slot")),
        ("slot_bytes", ctypes.c_int64),
    )


#: `Choice` of row_sampling.h.
CHOICE: Final = np.dtype(
    [
        *((name, np.int64) for name in ("changed", "token", "occurred", "counts")),
        ("keys", np.uint32, 2),
        *((name, np.int32) for name in ("mode", "wants_logprob", "alternatives", "top_k", "occurrences")),
        *((name, np.float32) for name in ("top_p", "min_p", "inverse_temperature", "repetition", "presence")),
        *((name, np.float32) for name in ("frequency", "logprob")),
    ],
    align=True,
)  # fmt: skip


class Pool:
    """Threads that run lists of operations together with the thread that calls `run`.

    Attributes:
        vectors: what the kernels were built for: "AVX-512 and AMX", "AVX-512", "AVX2" or "NEON".

    Args:
        often: calls mostly follow at once, so threads spin for up to a tenth of a millisecond before they sleep.

    Raises:
        UnavailableError: there are no kernels here, or not so many threads.
    """

    def __init__(self, threads: int, *, often: bool = False) -> None:
        self._library = library()
        sizes = ("djl_op_size", "djl_step_size", "djl_choice_size")
        theirs = [getattr(self._library, name)() for name in sizes]
        if theirs != [ctypes.sizeof(Op), ctypes.sizeof(Step), CHOICE.itemsize]:
            raise NotUnderstoodError("the kernels and pool.py disagree about their structures")
        self.vectors: str = self._library.djl_vectors().decode()
        self._handle: int | None = self._library.djl_pool(threads, _OFTEN_SPINS if often else _SPINS)
        if self._handle is None:
            raise UnavailableError(f"the system does not give {threads} threads")

    def run(self, operations: Any, count: int, step: Step, *, late: Step | None = None, bf16: bool = False) -> None:
        """Run the first `count` of an array of `Op`; returns when all are done. Not thread-safe.

        Args:
            late: the step of late operations, whose tokens are the rows whose logits are wanted.
        """
        after = None if late is None else ctypes.byref(late)
        self._library.djl_run(self._handle, operations, count, ctypes.byref(step), after, int(bf16))

    def parts(self, steps: int) -> int:
        """How many parts a panel of `steps` 32-bit lanes along k is multiplied in."""
        return int(self._library.djl_parts(steps))

    def codes_bytes(self, k: int) -> int:
        """Bytes of a row of k activations that are quantized to integers."""
        return int(self._library.djl_codes_bytes(k))

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
