"""The settings of DJL's Hugging Face handler, and the arguments of `from_pretrained` that they mean.

Runs in the worker. Source: LMI's "Hugging Face Accelerate" options.
"""

from __future__ import annotations

import enum
from typing import Any

from .properties import Properties, RollingBatchEnum

_ROLLING_BATCHES = frozenset(kind.value for kind in RollingBatchEnum)


class HFQuantizeMethods(enum.StrEnum):
    """Values of option.quantize."""

    bitsandbytes = "bitsandbytes"
    bitsandbytes4 = "bitsandbytes4"
    bitsandbytes8 = "bitsandbytes8"
    gptq = "gptq"
    awq = "awq"


class HuggingFaceProperties(Properties):
    """A model's settings; `device` is "cuda:N", or None for a CPU, and `kwargs` are those of `from_pretrained`.

    `kwargs["dtype"]` is transformers' name of a number format; option.quantize=bitsandbytes4 and bitsandbytes8 are
    `load_in_4bit` and `load_in_8bit`, which `HuggingFaceService` makes a quantization configuration of.
    """

    device_id: int = -1
    task: str | None = None
    tensor_parallel_degree: int = -1
    device_map: str | None = None
    load_in_4bit: bool | None = None
    load_in_8bit: bool | None = None
    quantize: HFQuantizeMethods | None = None
    low_cpu_mem_usage: bool | None = False
    disable_flash_attn: bool | None = True
    data_type: str | None = None
    device: Any = None
    kwargs: dict[str, Any] = {}  # noqa: RUF012  (a field: each instance has a copy)

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        given = super().read(given)
        if given.get("rolling_batch", "disable") not in _ROLLING_BATCHES:
            given["rolling_batch"] = "auto"
        given.pop("device", None)  # it is what device_id says: option.device is the built-in handler's
        given.setdefault("kwargs", {})
        return given

    def check(self) -> None:
        super().check()
        if self.load_in_4bit:
            self.quantize = HFQuantizeMethods.bitsandbytes4
        elif self.load_in_8bit:
            self.quantize = HFQuantizeMethods.bitsandbytes8
        if self.device_map:
            self.kwargs["device_map"] = self.device_map
        elif self.device_id >= 0:
            self.device = f"cuda:{self.device_id}"
        self.kwargs["trust_remote_code"] = self.trust_remote_code
        if self.revision:
            self.kwargs["revision"] = self.revision
        if name := self.dtype or self.data_type:
            self.kwargs["dtype"] = dtype_name(name)
        match self.quantize:
            case HFQuantizeMethods.bitsandbytes4:
                self.kwargs["load_in_4bit"] = True
            case HFQuantizeMethods.bitsandbytes8:
                self.kwargs["load_in_8bit"] = True


_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8", "auto": "auto"}


def dtype_name(dtype: str) -> str:
    """torch's name of a number format, of DJL's name for it.

    Raises:
        ValueError: it is none of DJL's names.
    """
    lowered = dtype.lower()
    if lowered in _DTYPES.values():
        return lowered
    if lowered not in _DTYPES:
        raise ValueError(f"Invalid data type: {dtype}, expected one of {', '.join(_DTYPES)}")
    return _DTYPES[lowered]
