"""An engine's report about itself: its runner, and how busy it is.

Runs in every process; depends on nothing but msgspec.
"""

from __future__ import annotations

import msgspec


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded model's runner, and how it computes.

    Attributes:
        runner: "native" (the fused operations of the CPU kernels), "torch-paged", "transformers-cache" (torch over its
            cache), the latter two followed by " (native products)" where kernels compute parts, the second by
            " (CUDA graphs)" where its steps are recorded; or another engine.
        dtype: torch's name of the number format of activations; "": unknown.
        quantize: the weights' quantization (`option.quantize`, or the checkpoint's); "none".
        device: torch's name of the device; "": unknown.
        refusal: why native kernels that could run here do not run the model; "": they do, or there are none.
        unrounded: the weights that are not quantized as `quantize` says; "": none.
        offloaded: where the weights are that are not on the device; "": there are none.
        weight_bytes: bytes of weights that every step reads, on each device.
        cache_bytes: the KV cache's largest size, on each device.
        max_model_len: prompt and generated tokens of one sequence, at most; 0 where that isn't known.
        takes_images: whether messages may have images.
        shares_prefixes: whether prompts with a common prefix share its KV blocks.
    """

    runner: str = ""
    dtype: str = ""
    quantize: str = "none"
    device: str = ""
    refusal: str = ""
    unrounded: str = ""
    offloaded: str = ""
    weight_bytes: int = 0
    cache_bytes: int = 0
    max_model_len: int = 0
    takes_images: bool = False
    shares_prefixes: bool = False

    @property
    def summary(self) -> str:
        """One line: the runner, and what it computes with."""
        weights = "" if self.quantize == "none" else f"{self.quantize} weights"
        return ", ".join(filter(None, (self.runner, self.dtype, weights, self.device)))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the model's owner, in sentences."""
        parts = []
        if self.refusal:
            alike = self.quantize == "int8" and not self.unrounded  # int4 has 5, 6 and 8 bits for some on the kernels
            same = " Its int8 weights are the same there." if alike else ""
            parts.append(
                f"not on the native kernels: {self.refusal}. It runs on {self.runner}, where steps take longer: "
                f"djl-serving bench measures how long.{same}"
            )
        if self.unrounded:
            parts.append(f"not all weights are {self.quantize}: {self.unrounded}")
        if self.offloaded:
            parts.append(self.offloaded)
        return tuple(parts)


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    """The engine after a step: gauges, the step itself, and counts since the engine started.

    `step_s` is how long the step took, in seconds, and `step_sequences` how many sequences it computed, those that it
    finished included; both are 0 where no step ran.

    Counts are `preemptions`, `draft_tokens` (that were verified) and `accepted_draft_tokens`.
    """

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    preemptions: int = 0
    step_s: float = 0.0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    step_sequences: int = 0
