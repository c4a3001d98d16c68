"""The built-in engine's row in the table. Read in every process; imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ...config import ModelConfig, devices_each, devices_of, has_gpu, read_json_object, stages_each
from ...config.adapters import adapter_rank
from ...core.errors import ModelLoadError
from ...core.faults import Faults
from ..adapter_options import LMI_MAX_LORAS, VLLM_MAX_RANK, rank_faults
from ..checkpoints.directory import (
    ROUNDED,
    check_checkpoint,
    context_fault,
    longest_of,
    method_of,
    quantization_fault,
    quantization_remark,
)
from ..interface import EngineSettings
from ..row import Engine
from ..settings import BuiltInSettings
from .drafts import drafts_of
from .options import BatchOptions, BuiltInOptions

_DRAFT: Final = "option.draft_model_id"
#: A number of bytes, as accelerate reads it.
_SIZE: Final = re.compile(r"\d+|\d+(\.\d+)?\s*[kKmMgGtT]i?[bB]")
#: The variable of torch's settings of its CUDA allocator.
_ALLOCATOR_SETTINGS: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def batch_settings(common: EngineSettings, options: BatchOptions, checkpoints: Mapping[str, Path]) -> BuiltInSettings:
    """The settings of the built-in batch; see `Engine.settings`."""
    drafts = drafts_of(options)
    return BuiltInSettings(
        **msgspec.structs.asdict(common),
        speculative="draft" if _DRAFT in checkpoints else "ngram" if drafts.looked_up else "none",
        draft_model_path=str(checkpoints.get(_DRAFT, "")),
        spec_length=drafts.length,
        threads=options.threads,
        block_size=options.block_size,
        kv_cache_memory_mb=options.kv_cache_memory_mb,
    )


def batch_checkpoints(options: BatchOptions) -> Mapping[str, str]:
    """The checkpoints that the batch needs beside the model; see `Engine.checkpoints`."""
    model = drafts_of(options).model
    return {_DRAFT: model} if model else {}


def batch_faults(config: ModelConfig, options: BatchOptions) -> Faults:
    """Faults: idle devices, workers that share devices with others, two sources of drafts."""
    faults = named_gpus_faults(config)
    drafts = drafts_of(options)
    if drafts.fault:
        faults.add([f"{config.where('option.speculative_config')}{drafts.fault}"])
    elif options.draft_model_id and options.speculative != "none":
        speculative = config.cite("option.speculative", options.speculative)
        faults.add([f"{speculative}: there is {_DRAFT} too; expected one of them"])
    return faults


def named_gpus_faults(config: ModelConfig) -> Faults:
    """Faults: idle devices, and named GPUs that do not exist."""
    faults = Faults()
    with faults.collected():
        devices_each(config)
    if (named := named_gpus(config)) and not has_gpu():
        setting, expected = (
            (config.cite("option.device", config.option.device), "cpu or auto")
            if named == [config.option.device]
            else (config.cite("load_on_devices", config.devices), "cpu or *")
        )
        faults.add([f"{setting}: there is no GPU here for {', '.join(named)}; expected {expected}"])
    return faults


def named_gpus(config: ModelConfig) -> list[str]:
    """The GPUs that a configuration names, by torch's names."""
    return [device for device in devices_of(config) if device.startswith("cuda")]


def checkpoint_faults(config: ModelConfig, path: Path) -> Faults:
    """A context that is longer than the checkpoint's.

    Raises:
        ModelLoadError: the checkpoint is not complete.
    """
    check_checkpoint(path, config.option.trust_remote_code)
    faults = Faults()
    longest = longest_of(read_json_object(path / "config.json"))
    if longest is not None and (fault := context_fault(config.option.max_model_len, longest)):
        faults.add([f"{config.where('option.max_model_len')}{fault}"])
    return faults


def batch_without_effect(config: ModelConfig, options: BatchOptions) -> list[str]:
    """Remarks: parts of option.speculative_config for another engine, and degrees on a machine without GPUs."""
    remark = drafts_of(options).remark
    drafts = [f"{config.where('option.speculative_config')}{remark}"] if remark else []
    return [*drafts, *degrees_without_effect(config)]


def degrees_without_effect(config: ModelConfig) -> list[str]:
    """Remarks on degrees on a machine without GPUs."""
    option = config.option
    degrees = {
        "tensor_parallel_degree": (option.tensor_parallel_degree or 1, devices_each(config)),
        "pipeline_parallel_degree": (option.pipeline_parallel_degree, stages_each(config)),
    }
    return [
        f"{config.cite(f'option.{name}', asked)} has no effect: there is no GPU"
        for name, (asked, used) in degrees.items()
        if asked != 1 and used == 1 and not has_gpu()
    ]


def batch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What torch reads when it is imported.

    On a GPU, contexts grow with every step, and so do the copies that
    attention makes: in segments of fixed sizes they would soon not fit where earlier ones were. torch has several names
    for this; only the oldest works from 2.6 to 2.13 (2.8 to 2.11 ignore PYTORCH_ALLOC_CONF for this setting).
    """
    if any(name in environ for name in _ALLOCATOR_SETTINGS):
        return {}
    return {_ALLOCATOR_SETTINGS[0]: "expandable_segments:True"}


def _settings(common: EngineSettings, options: BuiltInOptions, checkpoints: Mapping[str, Path]) -> BuiltInSettings:
    return msgspec.structs.replace(
        batch_settings(common, options, checkpoints),
        kernels=options.kernels,
        enforce_eager=options.enforce_eager,
        quantize=options.quantize,
        device_map=options.device_map.strip(),
        max_memory=options.max_memory,
        offload_folder=options.offload_folder,
        enable_lora=bool(options.enable_lora),
        max_loras=options.max_loras or LMI_MAX_LORAS,
        max_cpu_loras=options.max_cpu_loras,
        max_lora_rank=options.max_lora_rank or max([VLLM_MAX_RANK, *map(adapter_rank, common.adapters.values())]),
    )


def _check(config: ModelConfig, options: BuiltInOptions) -> None:
    faults = batch_faults(config, options)
    faults.add(_layout_faults(config, options))
    faults.add(_adapter_faults(config, options))
    if (named := named_gpus(config)) and options.quantize in ROUNDED:
        quantize = config.cite("option.quantize", options.quantize)
        faults.add([f"{quantize} is for CPUs; the model is on {', '.join(named)}"])
    option = config.option
    if stages_each(config) > 1 and option.tensor_parallel_degree not in (None, 1):
        pipeline = config.cite("option.pipeline_parallel_degree", option.pipeline_parallel_degree)
        faults.add([f"{pipeline}: devices share each layer too (option.tensor_parallel_degree); expected one of them"])
    faults.refuse()


def _check_checkpoint(config: ModelConfig, options: BuiltInOptions, key: str, path: Path) -> None:
    """Refuse a checkpoint that is not complete, or that can't be rounded as `option.quantize` says."""
    if key == _DRAFT:
        check_checkpoint(path, config.option.trust_remote_code)
        return
    faults = checkpoint_faults(config, path)
    if fault := quantization_fault(options.quantize, _method(path)):
        faults.add([f"{config.where('option.quantize')}{fault}"])
    faults.refuse()


def _method(path: Path) -> str | None:
    """The quantization method of a checkpoint."""
    return method_of(read_json_object(path / "config.json").get("quantization_config"))


def _adapter_faults(config: ModelConfig, options: BuiltInOptions) -> Faults:
    """Settings that exclude LoRA adapters, for a model with adapters."""
    if not options.enable_lora:
        return Faults()
    return rank_faults(config, options.max_lora_rank)


def _layout_faults(config: ModelConfig, options: BuiltInOptions) -> Faults:
    """Faults: a layout that can't be read, and settings that contradict one."""
    faults, device_map = Faults(), config.where("option.device_map")
    if options.device_map.startswith("{"):
        with faults.collected(device_map):
            _json_object("option.device_map", options.device_map, '{"model.embed_tokens": "cpu", "": "disk"}')
    if options.max_memory:
        with faults.collected(config.where("option.max_memory")):
            _check_limits(options)
    if options.device_map and (options.max_memory or options.device_map.startswith("{")):
        if options.kernels == "native":
            kernels = config.cite("option.kernels", "native")
            faults.add([f"{kernels}: a model that is laid out runs on torch (option.device_map)"])
        if options.quantize in ROUNDED:
            quantize = config.cite("option.quantize", options.quantize)
            faults.add([f"{quantize}: a model that is laid out keeps its weights (option.device_map)"])
    return faults


def _check_limits(options: BuiltInOptions) -> None:
    example = '{"0": "10GiB", "cpu": "30GiB"}'
    limits = _json_object("option.max_memory", options.max_memory, example)
    if not options.device_map:
        raise ModelLoadError("option.max_memory limits what option.device_map lays out, which is unset: auto")
    for name, most in limits.items():
        if not (name == "cpu" or name.isdecimal()) or not _SIZE.fullmatch(str(most)):
            raise ModelLoadError(f"option.max_memory: {name}: {most!r}: expected sizes by device, as in {example}")


def _json_object(key: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ModelLoadError(f"{key}: not valid JSON ({exc}); expected {example}") from exc
    if not isinstance(value, dict):
        raise ModelLoadError(f"{key}: expected a JSON object, as in {example}")
    return value


def _without_effect(config: ModelConfig, options: BuiltInOptions) -> list[str]:
    eager = (
        [f"{config.cite('option.enforce_eager', 'true')} has no effect: there is no GPU"]
        if options.enforce_eager and not has_gpu()
        else []
    )
    return [*batch_without_effect(config, options), *eager]


def _without_effect_on(config: ModelConfig, options: BuiltInOptions, path: Path) -> list[str]:
    remark = quantization_remark(options.quantize, _method(path))
    return [f"{config.where('option.quantize')}{remark}"] if remark else []


def _environment(config: ModelConfig, options: BuiltInOptions, environ: Mapping[str, str]) -> Mapping[str, str]:
    """What torch reads when it is imported.

    The threads of native kernels need the cores between torch's operations. So torch's idle threads spin only for
    microseconds, the usual gap between its operations, and not for most of a millisecond (GOMP_SPINCOUNT).
    """
    from ..native.api import lacking

    variables = batch_environment(environ)
    if options.kernels != "torch" and not lacking():
        variables["GOMP_SPINCOUNT"] = "2000"
    return variables


ENGINE: Final = Engine(
    name="auto",
    summary="This server's own: continuous batching over a paged KV cache, on CPUs and GPUs.",
    opens="djl_python.engine.builtin.opening:open_batch",
    takes_probe_ids=True,
    takes_adapters=True,
    runs_encoder_decoders=True,
    options=BuiltInOptions,
    settings_type=BuiltInSettings,
    settings=_settings,
    checkpoints=batch_checkpoints,
    check=_check,
    check_checkpoint=_check_checkpoint,
    without_effect=_without_effect,
    without_effect_on=_without_effect_on,
    environment=_environment,
)
