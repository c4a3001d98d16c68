"""The settings of DJL's TensorRT-LLM handler. Runs in the worker. Source: LMI's "TensorRT-LLM Engine User Guide"."""

from __future__ import annotations

from .properties import Properties


class TensorRtLlmProperties(Properties):
    """A model's settings, with those that LMI documents for TensorRT-LLM at run time."""

    tensor_parallel_degree: int | None = None  # type: ignore[assignment]
    pipeline_parallel_degree: int = 1
    max_rolling_batch_size: int | None = 256
    max_input_len: int | None = None
    max_output_len: int | None = None
    batch_scheduler_policy: str | None = None
    kv_cache_free_gpu_mem_fraction: float | None = None
