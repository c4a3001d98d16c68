"""The settings of the built-in engine, which its rooms read. Runs in the worker and in the engine."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .interface import EngineSettings


class BuiltInSettings(EngineSettings, frozen=True, kw_only=True):
    """`EngineSettings`, and those of the built-in engine alone; `option.*` documents each.

    `kv_blocks` fixes the number of the cache's blocks, as for a draft model.
    One of the two parallel degrees is 1.
    `probe_ids` are a text to try the model on, where it isn't sent later (`Engine.takes_probe_ids`).
    `placement` is the module:Class of the `devices.placement.DevicePlacement` that places the weights, made with
    `placement_options`; `placement_name` is what users call it. "": the engine places weights itself.
    `enable_lora` says whether sequences may name `adapters`; `max_lora_rank` is the highest rank.
    """

    kernels: str = "auto"
    enforce_eager: bool = False
    quantize: Literal["none", "int8", "int4", "gptq", "awq"] = "none"
    speculative: Literal["none", "ngram", "draft"] = "none"
    draft_model_path: str = ""
    spec_length: int | None = None
    threads: int | None = None
    block_size: int = 16
    kv_cache_memory_mb: int | None = None
    kv_blocks: int | None = None
    device_map: str = ""
    max_memory: str = ""
    offload_folder: str = ""
    probe_ids: list[int] = msgspec.field(default_factory=list)
    placement: str = ""
    placement_name: str = ""
    placement_options: dict[str, Any] = msgspec.field(default_factory=dict)
    enable_lora: bool = False
    max_loras: int = 4
    max_cpu_loras: int | None = None
    max_lora_rank: int = 16

    @property
    def ranks(self) -> int:
        """How many processes, each of a device of its own, share the model."""
        return self.tensor_parallel_degree * self.pipeline_parallel_degree
