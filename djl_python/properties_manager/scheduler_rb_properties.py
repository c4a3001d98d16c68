"""The settings of DJL's scheduler, a rolling batch of Hugging Face's models. Runs in the worker."""

from __future__ import annotations

from .hf_properties import HuggingFaceProperties


class SchedulerRbProperties(HuggingFaceProperties):
    """A model's settings, with those that LMI documents for `option.rolling_batch=scheduler`."""

    decoding_strategy: str = "greedy"
    max_sparsity: float | None = 0.33
    max_splits: int | None = 3
    multi_gpu: str | None = None
