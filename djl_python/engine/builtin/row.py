"""The built-in engine's row in the table. Read in every process; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ...config import ModelConfig, devices_each, devices_of, has_gpu
from ...core.errors import ModelLoadError
from ..interface import Engine, EngineSettings
from ..settings import BuiltInSettings
from .options import BuiltInOptions

_DRAFT: Final = "option.draft_model_id"
#: What torch reads its CUDA allocator's settings from.
_ALLOCATOR_SETTINGS: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def _settings(common: EngineSettings, options: BuiltInOptions, checkpoints: Mapping[str, Path]) -> BuiltInSettings:
    return BuiltInSettings(
        **msgspec.structs.asdict(common),
        kernels=options.kernels,
        quantize=options.quantize,
        speculative="draft" if _DRAFT in checkpoints else options.speculative,
        draft_model_path=str(checkpoints.get(_DRAFT, "")),
        spec_length=options.spec_length,
        threads=options.threads,
        block_size=options.block_size,
        kv_cache_memory_mb=options.kv_cache_memory_mb,
    )


def _checkpoints(options: BuiltInOptions) -> Mapping[str, str]:
    return {_DRAFT: options.draft_model_id} if options.draft_model_id else {}


def _check(config: ModelConfig, options: BuiltInOptions) -> None:
    """Refuse what would leave devices idle, workers that would have devices of others, two sources of drafts."""
    devices_each(config)
    named = [device for device in devices_of(config) if device.startswith("cuda")]
    if named and not has_gpu():
        raise ModelLoadError(f"load_on_devices: there is no GPU here for {', '.join(named)}; expected cpu or *")
    if options.draft_model_id and options.speculative != "none":
        raise ModelLoadError(f"{_DRAFT} and option.speculative={options.speculative}: expected one of them")
    if config.option.pipeline_parallel_degree > 1:
        raise ModelLoadError(
            f"option.pipeline_parallel_degree={config.option.pipeline_parallel_degree}: devices can share each layer "
            "(option.tensor_parallel_degree), not have layers of their own; expected 1"
        )


def _without_effect(config: ModelConfig, options: BuiltInOptions) -> list[str]:
    degree = config.option.tensor_parallel_degree or 1
    if degree != 1 and devices_each(config) == 1 and not has_gpu():
        return [f"option.tensor_parallel_degree={degree} has no effect: there is no GPU"]
    return []


def _environment(config: ModelConfig, options: BuiltInOptions, environ: Mapping[str, str]) -> Mapping[str, str]:
    """What torch reads when it is imported.

    The threads of native kernels need the cores between torch's operations. So torch's idle threads spin only for
    microseconds, the usual gap between its operations, and not for most of a millisecond (GOMP_SPINCOUNT).

    On a GPU, contexts grow with every step, and so do the copies that attention makes: in segments of fixed sizes they
    would soon not fit where earlier ones were. Of the names that torch has for this, only the oldest works from 2.6 to
    2.13 (2.8 to 2.11 ignore PYTORCH_ALLOC_CONF for this setting).
    """
    from ..native.library import lacking

    variables = {}
    if options.kernels != "torch" and not lacking():
        variables["GOMP_SPINCOUNT"] = "2000"
    if not any(name in environ for name in _ALLOCATOR_SETTINGS):
        variables[_ALLOCATOR_SETTINGS[0]] = "expandable_segments:True"
    return variables


ENGINE: Final = Engine(
    name="auto",
    summary="This server's own: continuous batching over a paged KV cache, on CPUs and GPUs.",
    opens="djl_python.engine.builtin.opening:open_batch",
    options=BuiltInOptions,
    settings_type=BuiltInSettings,
    settings=_settings,
    checkpoints=_checkpoints,
    check=_check,
    without_effect=_without_effect,
    environment=_environment,
)
