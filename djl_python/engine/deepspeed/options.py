"""The options of DeepSpeed, declared as all others are (`config.settings`). Runs in every process."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from ...config.settings.values import Positive
from ..builtin.options import BatchOptions

#: DJL's ways to quantize with its own copy of DeepSpeed, and other engines' formats.
_FORMATS: Final = dict.fromkeys(
    "smoothquant dynamic_int8 int8 int4 fp8 gptq awq bitsandbytes".split(),
    "DeepSpeed places the checkpoint's weights as they are",
)


class DeepSpeedOptions(BatchOptions, frozen=True, kw_only=True):
    """The `option.*` keys that DJL documents for DeepSpeed, beside those of every engine and of the built-in batch."""

    deepspeed_config_path: Annotated[
        str,
        Meta(
            description="DeepSpeed: a JSON file of its own settings, relative to the model's directory: "
            "zero_optimization (ZeRO-Inference: stage 3, with parameters offloaded to CPU or NVMe), aio, "
            "tensor_parallel, and those of its kernels. What has no effect is named at start.",
        ),
    ] = ""
    replace_with_kernel_inject: Annotated[
        bool,
        Meta(
            description="DeepSpeed: its inference kernels in the place of a model's layers, on GPUs, where they "
            "compute what the layers do; sequences then run one after the other. Not tested on a GPU yet.",
            extra={"aliases": ["kernel_inject"]},
        ),
    ] = False
    max_tokens: Annotated[
        Positive | None,
        Meta(description="DeepSpeed: tokens of prompt and answer together, where option.max_model_len is unset."),
    ] = None
    checkpoint: Annotated[
        str,
        Meta(description="DeepSpeed: no effect; its own checkpoints are not read, but the Hugging Face checkpoint is."),
    ] = ""
    quantize: Annotated[
        Literal["none"],
        Meta(
            description="DeepSpeed: none; it places the checkpoint's weights as they are.",
            extra={"without_effect": _FORMATS},
        ),
    ] = "none"
