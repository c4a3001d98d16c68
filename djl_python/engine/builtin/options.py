"""The options of the built-in engine, declared as all others are (`config.settings`). Runs in every process."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...config.settings import Positive

#: LMI's and vLLM's names of formats that weights aren't made into here.
_OTHER_FORMATS: Final = dict.fromkeys(
    "deepspeedfp fp8 marlin smoothquant squeezellm".split(),
    "weights keep the checkpoint's format (int8 or int4 rounds them on CPUs)",
)


class BuiltInOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `option.*` keys that only the built-in engine takes."""

    kernels: Annotated[
        Literal["auto", "native", "torch"],
        Meta(
            description="What computes on a CPU: native kernels (of the wheel, or built at first use), "
            "torch, or auto for native where it can be.",
        ),
    ] = "auto"
    quantize: Annotated[
        Literal["none", "int8", "int4", "gptq", "awq"],
        Meta(
            description="Weights of 8 bits (a scale per output) or 4 (a scale and a zero per 64 inputs; but down "
            "projections and the lm_head of 8), made at load, on CPUs; gptq and awq: the checkpoint comes that way, "
            "which needs no option.",
            extra={
                "aliases": ["quantization"],
                "spellings": {
                    "bitsandbytes": "int8",
                    "bitsandbytes8": "int8",
                    "dynamic_int8": "int8",
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
        Meta(description="Guess the next tokens by looking the last ones up in the text so far; the text is the same."),
    ] = "none"
    draft_model_id: Annotated[
        str,
        Meta(
            description="A smaller model with the same vocabulary that guesses the next tokens; the text is the same.",
            extra={"aliases": ["speculative_draft_model"]},
        ),
    ] = ""
    spec_length: Annotated[
        Positive | None, Meta(description="Tokens guessed at once at most; unset: 8 looked up, 5 by a model.")
    ] = None
