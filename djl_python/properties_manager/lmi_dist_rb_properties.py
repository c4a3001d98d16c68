"""The settings of DJL's lmi-dist handler. Runs in the worker. Source: LMI's "LMI-Dist Engine User Guide"."""

from __future__ import annotations

from .properties import Properties


class LmiDistRbProperties(Properties):
    """A model's settings, with those that LMI documents for lmi-dist, and their defaults there."""

    engine: str | None = None
    dtype: str | None = "auto"
    load_format: str | None = "auto"
    quantize: str | None = None
    tensor_parallel_degree: int | None = None  # type: ignore[assignment]
    max_rolling_batch_size: int | None = 256
    max_rolling_batch_prefill_tokens: int | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    max_loras: int = 4
    max_lora_rank: int = 16
    lora_extra_vocab_size: int = 256
    max_cpu_loras: int | None = None
    speculative_draft_model: str | None = None
    draft_model_tp_size: int = 1
    tokenizer_mode: str = "auto"
