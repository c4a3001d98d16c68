"""What the engine of encoders is opened with. Runs in the worker and in the engine."""

from __future__ import annotations

import enum
from typing import Literal

from ..interface import EngineSettings
from .sentence_transformers import Modules


class Head(enum.StrEnum):
    """What is wanted of a model: its hidden states, or what its last layer says of a text or of its tokens."""

    EMBEDDING = "embedding"
    CLASSES = "classes"
    TOKEN_CLASSES = "token-classes"
    SPANS = "spans"
    MASKED = "masked"


class EncoderSettings(EngineSettings, frozen=True, kw_only=True):
    """`EngineSettings`, and those of encoders alone.

    Attributes:
        modules: what is behind the model's hidden states, of an embedding.
        threads: CPU threads; None: all cores.
        kernels: what computes on a CPU.
        quantize: the number format that weights are rounded to; None: the checkpoint's own.
        max_batch_tokens: tokens that are computed at once, padding included; None: as suits the device.
        batch_size: sequences that are computed at once, at most; 1: as many as `max_batch_tokens` allows.
        max_batch_delay_s: how long fewer than `batch_size` sequences wait for others, in seconds.
    """

    head: Head
    modules: Modules = Modules()
    threads: int | None = None
    kernels: Literal["auto", "native", "torch"] = "auto"
    quantize: Literal["int8", "int4"] | None = None
    max_batch_tokens: int | None = None
    batch_size: int = 1
    max_batch_delay_s: float = 0.0
