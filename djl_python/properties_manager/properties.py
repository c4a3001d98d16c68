"""The settings that all of DJL's handlers have: `Properties(**inputs.get_properties())`.

Runs in the worker. Source: LMI's "Common LMI configurations".
"""

from __future__ import annotations

import enum
from typing import Any

from .declared import Declared


class RollingBatchEnum(enum.StrEnum):
    """Values of option.rolling_batch."""

    vllm = "vllm"
    lmidist = "lmi-dist"
    scheduler = "scheduler"
    trtllm = "trtllm"
    tnx = "tnx"
    auto = "auto"
    disable = "disable"


class StreamingEnum(enum.StrEnum):
    """Values of option.enable_streaming."""

    true = "true"
    false = "false"
    huggingface = "huggingface"


def is_streaming_enabled(enable_streaming: StreamingEnum) -> bool:
    """Whether answers are streamed."""
    return enable_streaming.value != StreamingEnum.false.value


def is_rolling_batch_enabled(rolling_batch: RollingBatchEnum) -> bool:
    """Whether option.rolling_batch names an engine."""
    return rolling_batch.value != RollingBatchEnum.disable.value


class Properties(Declared):
    """A model's settings, without the prefix `option.`.

    `model_id_or_path` is option.model_id, or else the model's directory.
    """

    model_id_or_path: str
    model_dir: str | None = None
    rolling_batch: RollingBatchEnum = RollingBatchEnum.disable
    tensor_parallel_degree: int = 1
    cluster_size: int = 1
    trust_remote_code: bool = False
    enable_streaming: StreamingEnum = StreamingEnum.false
    batch_size: int = 1
    max_rolling_batch_size: int | None = 32
    dtype: str | None = None
    revision: str | None = None
    output_formatter: Any = None
    input_formatter: Any = None
    waiting_steps: int | None = None
    mpi_mode: bool = False
    tgi_compat: bool = False
    bedrock_compat: bool = False
    enable_lora: bool = False
    draft_model_id: str | None = None
    spec_length: int | None = 0

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        given.setdefault("model_id_or_path", given.get("model_id") or given.get("model_dir"))
        if given["model_id_or_path"] is None:
            raise ValueError(f"{type(self).__name__}: neither model_id nor model_dir is set")
        for name in ("rolling_batch", "enable_streaming"):
            if isinstance(given.get(name), str):
                given[name] = given[name].lower()
        return given

    def check(self) -> None:
        batches = self.batch_size > 1 and not is_rolling_batch_enabled(self.rolling_batch)
        if batches and is_streaming_enabled(self.enable_streaming):
            raise ValueError("enable_streaming: a dynamic batch (batch_size > 1) cannot be streamed")
