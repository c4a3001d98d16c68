"""TensorRT-LLM's row in the table of engines. Read in every process; imports nothing of TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ...config import ModelConfig, has_gpu, read_json_object
from ...config.engines import Distribution
from ...core.errors import ModelLoadError
from ..interface import EngineSettings
from ..others import visible_gpus
from ..row import Engine
from .arguments import WITHOUT_EFFECT, TrtllmOptions, TrtllmSettings
from .sampling import PARAMETERS


def _settings(common: EngineSettings, options: TrtllmOptions, checkpoints: Mapping[str, Path]) -> TrtllmSettings:
    return TrtllmSettings(**msgspec.structs.asdict(common), own=options)


def _check(config: ModelConfig, options: TrtllmOptions) -> None:
    device = config.option.device
    if device == "cpu" or not has_gpu():
        raise ModelLoadError(f"option.rolling_batch=trtllm runs on GPUs alone; option.device={device}")


def _check_checkpoint(config: ModelConfig, options: TrtllmOptions, key: str, path: Path) -> None:
    """Refuse checkpoints compiled by TensorRT, which older releases ran."""
    file = path / "config.json"
    if file.is_file() and {"build_config", "pretrained_config"} <= read_json_object(file).keys():
        raise ModelLoadError(
            f"{file}: an engine that TensorRT compiled; expected the checkpoint that it was made of, which "
            "TensorRT-LLM runs as it is"
        )


def _without_effect(config: ModelConfig, options: TrtllmOptions) -> list[str]:
    warnings = [
        "TensorRT-LLM is untested on hardware with this server, and requests' seeds do not repeat draws with it"
    ]
    if options.quantize:
        warnings.append(
            f"{config.cite('option.quantize', options.quantize)} has no effect: TensorRT-LLM runs the checkpoint as it "
            "is quantized"
        )
    if config.provenance.get("option.gpu_memory_utilization", "default") != "default":
        warnings.append(
            f"{config.where('option.gpu_memory_utilization')}option.gpu_memory_utilization has no effect with "
            "TensorRT-LLM: option.kv_cache_free_gpu_mem_fraction sets the share of the free memory for its KV cache"
        )
    return warnings


ENGINE: Final = Engine(
    name="trtllm",
    summary="TensorRT-LLM, on NVIDIA's GPUs alone; untested on hardware with this server.",
    opens="djl_python.engine.trtllm.engine:TrtllmEngine",
    options=TrtllmOptions,
    settings_type=TrtllmSettings,
    settings=_settings,
    parameters=PARAMETERS,
    requires=("tensorrt_llm",),
    needs_gpu=True,
    distribution=Distribution(
        # As NVIDIA documents it: of torch the build for the CUDA that the wheel was built with. The wheel is on
        # NVIDIA's index; PyPI's package of this name only fetches it.
        cuda=("tensorrt-llm==1.2.1", "torch==2.9.1"),
        indexes=("https://pypi.nvidia.com", "https://download.pytorch.org/whl/cu130"),
        pythons=((3, 12),),
        also="libopenmpi (apt-get install libopenmpi-dev)",
    ),
    takes_any_option=True,
    options_without_effect=WITHOUT_EFFECT,
    check=_check,
    check_checkpoint=_check_checkpoint,
    without_effect=_without_effect,
    environment=lambda config, options, environ: visible_gpus(config, environ),
)
