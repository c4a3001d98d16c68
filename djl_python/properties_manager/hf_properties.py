"""The settings of DJL's Hugging Face handler, and the arguments of `from_pretrained` that they mean.

Runs in the worker. Source: LMI's "Hugging Face Accelerate" options.
"""

from __future__ import annotations

import enum
import logging
from typing import Any

from ..config.devices import gpu_count
from .properties import Properties, RollingBatchEnum

log = logging.getLogger(__name__)

_ROLLING_BATCHES = frozenset(kind.value for kind in RollingBatchEnum)


class HFQuantizeMethods(enum.StrEnum):
    """Values of option.quantize."""

    bitsandbytes = "bitsandbytes"
    bitsandbytes4 = "bitsandbytes4"
    bitsandbytes8 = "bitsandbytes8"
    gptq = "gptq"
    awq = "awq"


_BITS = {HFQuantizeMethods.bitsandbytes4: "load_in_4bit", HFQuantizeMethods.bitsandbytes8: "load_in_8bit"}
#: LMI's engines that make of option.quantize what they want.
_QUANTIZE_THEMSELVES = (RollingBatchEnum.lmidist, RollingBatchEnum.vllm)


class HuggingFaceProperties(Properties):
    """A model's settings; `device` is "cuda:N", or None for a CPU, and `kwargs` are those of `from_pretrained`.

    `kwargs["dtype"]` is transformers' name of a number format; option.quantize=bitsandbytes4 and bitsandbytes8 are
    `load_in_4bit` and `load_in_8bit`, which `HuggingFaceService` makes a quantization configuration of. Where a
    tensor_parallel_degree is all GPUs that there are, `device_map` is "auto".

    Raises:
        ValueError: a value is none of DJL's; or bitsandbytes is to quantize a model that no device_map places, and that
            no engine of LMI's would quantize (option.rolling_batch=vllm, lmi-dist).
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
        elif self.tensor_parallel_degree > 0 and self.tensor_parallel_degree == gpu_count():
            self.kwargs["device_map"] = "auto"
        elif self.device_id >= 0:
            self.device = f"cuda:{self.device_id}"
        self.kwargs["trust_remote_code"] = self.trust_remote_code
        if self.low_cpu_mem_usage:
            self.kwargs["low_cpu_mem_usage"] = True
        if self.revision:
            self.kwargs["revision"] = self.revision
        if name := self.dtype or self.data_type:
            self.kwargs["dtype"] = dtype_name(name)
        if self.quantize in _BITS:
            self._quantize(self.quantize)

    def _quantize(self, quantize: HFQuantizeMethods) -> None:
        if "device_map" in self.kwargs:
            self.kwargs[_BITS[quantize]] = True
        elif self.rolling_batch in _QUANTIZE_THEMSELVES:
            log.warning("quantize=%s has no effect without device_map: transformers loads the model", quantize)
        else:
            raise ValueError(f"quantize={quantize}: device_map should be set, such as device_map=auto")
        if quantize is HFQuantizeMethods.bitsandbytes8 and self.rolling_batch is RollingBatchEnum.lmidist:
            self.quantize = HFQuantizeMethods.bitsandbytes  # by lmi-dist's name


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
