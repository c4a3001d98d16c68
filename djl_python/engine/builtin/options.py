"""The options of the built-in engine, declared like all others (`config.settings`). Runs in every process."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...config.settings.values import Positive
from ..adapter_options import AdaptersFolder, EnableLora, LoraModules, MaxCpuLoras, MaxLoraRank, MaxLoras

#: LMI's, vLLM's and TGI's names of formats that weights aren't made into here.
_OTHER_FORMATS: Final = dict.fromkeys(
    """
    aqlm auto-round bitblas compressed-tensors deepspeedfp eetq exl2 experts_int8 fbgemm_fp8 fp8 gguf gptq_bitblas
    gptq_marlin_24 hqq inc ipex marlin modelopt modelopt_fp4 moe_wna16 mxfp4 ptpc_fp8 quark smoothquant squeezellm
    torchao tpu_int8
    """.split(),
    "weights keep the checkpoint's format (on CPUs, int8 or int4 quantizes them)",
)
#: Values of option.device_map that name one device, which is where a model that fits is anyway.
_ONE_DEVICE: Final = dict.fromkeys(
    ("cpu", "cuda", *(f"{kind}{index}" for kind in ("", "cuda:") for index in range(16))),
    "load_on_devices and option.device say where the model is",
)


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `option.*` keys of the built-in engine's batch, whichever library places the model's weights."""

    threads: Annotated[
        Positive | None,
        Meta(description="CPU threads of the engine; unset: all cores, within the CPU limit of a container."),
    ] = None
    block_size: Annotated[int, Meta(ge=1, description="Tokens per block of the KV cache.")] = 16
    kv_cache_memory_mb: Annotated[
        Positive | None,
        Meta(description="Memory for the KV cache, a draft model's included, in MiB; unset: the engine chooses."),
    ] = None
    speculative: Annotated[
        Literal["none", "ngram"],
        Meta(
            description="Speculative decoding with n-grams: draft the next tokens by looking up the last ones "
            "in the text so far; the output is the same."
        ),
    ] = "none"
    draft_model_id: Annotated[
        str,
        Meta(
            description="Speculative decoding with a smaller model of the same vocabulary, which drafts the "
            "next tokens; the output is the same.",
            extra={
                "aliases": ["speculative_draft_model"],
                "without_effect": {
                    "sagemaker": "SageMaker's draft models are not here (option.speculative=ngram needs none)"
                },
            },
        ),
    ] = ""
    spec_length: Annotated[
        Positive | None, Meta(description="Draft tokens at a time, at most; unset: 8 with n-grams, 5 with a model.")
    ] = None
    speculative_config: Annotated[
        str,
        Meta(
            description='The three settings above in vLLM\'s form: {"method": "ngram", '
            '"num_speculative_tokens": 4}, or {"model": "DIR", "num_speculative_tokens": '
            "3}."
        ),
    ] = ""


class BuiltInOptions(BatchOptions, frozen=True, kw_only=True):
    """The `option.*` keys that only the built-in engine takes."""

    kernels: Annotated[
        Literal["auto", "native", "torch"],
        Meta(
            description="What computes on a CPU: native kernels (of the wheel, or built at first use), "
            "torch, or auto for native where it can be.",
        ),
    ] = "auto"
    enforce_eager: Annotated[
        bool,
        Meta(description="On a GPU, launch each operation of a step by itself instead of as a CUDA graph: slower."),
    ] = False
    quantize: Annotated[
        Literal["none", "int8", "int4", "gptq", "awq"],
        Meta(
            description="Weights of 8 bits (a scale per output) or of 4 to 6 (a step and a least number per 32 inputs; "
            "the lm_head of 8), made at load, on CPUs; gptq and awq: the checkpoint comes that way, which needs no "
            "option.",
            extra={
                "aliases": ["quantization"],
                "spellings": {
                    "bitsandbytes": "int8",
                    "bitsandbytes8": "int8",
                    "dynamic_int8": "int8",
                    "static_int8": "int8",
                    "bitsandbytes4": "int4",
                    "bitsandbytes-nf4": "int4",
                    "bitsandbytes-fp4": "int4",
                    "awq_marlin": "awq",
                    "gptq_marlin": "gptq",
                },
                "without_effect": _OTHER_FORMATS,
            },
        ),
    ] = "none"
    device_map: Annotated[
        str,
        Meta(
            pattern=r"^(auto|balanced|balanced_low_0|sequential|\s*\{.*\}\s*)?$",
            description="How accelerate lays out a model that is larger than its device: auto, balanced, "
            "balanced_low_0, sequential, or a JSON object of modules and devices (0, cpu, disk). A model that fits is "
            "on its device. What is not there is read again at every step.",
            extra={
                "expected": "auto, balanced, balanced_low_0, sequential, or a JSON object",
                "without_effect": _ONE_DEVICE,
            },
        ),
    ] = ""
    max_memory: Annotated[
        str,
        Meta(
            description='With option.device_map: what weights may take of devices, as in {"0": "10GiB", "cpu": '
            '"30GiB"}; the rest is on disk.',
        ),
    ] = ""
    offload_folder: Annotated[
        str, Meta(description="With option.device_map: a directory for weights on disk; unset: a temporary one.")
    ] = ""
    enable_lora: EnableLora = None
    adapters: AdaptersFolder = "adapters"
    lora_modules: LoraModules = ""
    max_loras: MaxLoras = None
    max_cpu_loras: MaxCpuLoras = None
    max_lora_rank: MaxLoraRank = None
