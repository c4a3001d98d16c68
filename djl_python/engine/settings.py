"""What the built-in engine is opened with: the settings that its rooms read. Runs in the worker and in the engine."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .interface import EngineSettings


class BuiltInSettings(EngineSettings, frozen=True, kw_only=True):
    """`EngineSettings`, and those of the built-in engine alone; `option.*` documents each.

    `kv_blocks` fixes the number of the cache's blocks, as for a draft model.
    One of the two parallel degrees is 1.
    `trial_ids` are a text to try the model on, where it isn't sent later (`trial_text`).
    `placement` is the module:Class of a `devices.placement.Placement` of a library's, which `placement_options` are
    for, and `placement_name` its name; "": the engine places weights itself.
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
    trial_ids: list[int] = msgspec.field(default_factory=list)
    placement: str = ""
    placement_name: str = ""
    placement_options: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many processes, each of a device of its own, share the model."""
        return self.tensor_parallel_degree * self.pipeline_parallel_degree
