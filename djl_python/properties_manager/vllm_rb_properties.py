"""The settings of DJL's vLLM handler. Runs in the worker. Source: LMI's "vLLM Engine User Guide"."""

from __future__ import annotations

from typing import Any

from .properties import Properties


class VllmRbProperties(Properties):
    """A model's settings, with those that LMI documents for vLLM, and their defaults there."""

    engine: str | None = None
    dtype: str | None = "auto"
    load_format: str | None = "auto"
    quantize: str | None = None
    tensor_parallel_degree: int | None = None  # type: ignore[assignment]
    pipeline_parallel_degree: int = 1
    max_rolling_batch_size: int | None = 256
    max_rolling_batch_prefill_tokens: int | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = False
    enable_chunked_prefill: bool | None = None
    max_loras: int = 4
    max_lora_rank: int = 16
    fully_sharded_loras: bool = False
    lora_extra_vocab_size: int = 256
    lora_dtype: str = "auto"
    max_cpu_loras: int | None = None
    device: str | None = None
    limit_mm_per_prompt: Any = None
    tokenizer_mode: str = "auto"
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
    enable_reasoning: bool = False
    reasoning_parser: str | None = None
