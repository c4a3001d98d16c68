"""DeepSpeed's row in the table of engines. Read in every process; imports nothing of DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ...config import ModelConfig, devices_each, engines_directory, has_gpu, stages_each
from ...config.engines import Distribution
from ...core.errors import ModelLoadError
from ...core.faults import Faults
from ..builtin.row import (
    batch_checkpoints,
    batch_environment,
    batch_faults,
    batch_settings,
    batch_without_effect,
    checkpoint_faults,
)
from ..checkpoints.directory import check_checkpoint
from ..interface import EngineSettings
from ..row import Engine
from ..settings import BuiltInSettings
from .configuration import OPTION, Reading, read_plan
from .options import DeepSpeedOptions

#: Tokens of a text that DeepSpeed's kernels have room for, where nothing says how many: DJL's default.
_KERNELS_CONTEXT: Final = 1024
_EXTENSIONS: Final = "extensions"
#: Versions that were tried together: the imports of an engine process, and the build dependencies of DeepSpeed.
_PINS: Final = (
    *("torch==2.13.0", "transformers==5.24.0", "accelerate==1.15.0", "llguidance==1.9.1", "numpy==2.4.6"),
    *("psutil==7.2.2", "uvloop==0.23.0", "setuptools==84.2.1", "wheel==0.48.0", "ninja==1.13.2"),
)
#: The extension that reads and writes NVMe; compiling it at the first start that needs it would take minutes.
_COMPILES: Final = """
from deepspeed.ops.op_builder import AsyncIOBuilder
builder = AsyncIOBuilder()
if builder.is_compatible(verbose=False):
    builder.load(verbose=False)
else:
    print("no offloading to NVMe: libaio's headers are missing")
"""


def _settings(common: EngineSettings, options: DeepSpeedOptions, checkpoints: Mapping[str, Path]) -> BuiltInSettings:
    on_cpu = common.device == "cpu" or not has_gpu()
    # A worker runs in the model's directory.
    plan = read_plan(options, Path.cwd(), common.tensor_parallel_degree, on_cpu=on_cpu).plan
    length = common.max_model_len or options.max_tokens or (None if plan.kernels is None else _KERNELS_CONTEXT)
    return msgspec.structs.replace(
        batch_settings(common, options, checkpoints),
        max_model_len=length,
        placement="djl_python.engine.deepspeed.placing:DeepSpeedPlacement",
        placement_name="DeepSpeed",
        placement_options=msgspec.to_builtins(plan),
    )


def _reading(config: ModelConfig, options: DeepSpeedOptions) -> Reading:
    on_cpu = config.option.device == "cpu" or not has_gpu()
    return read_plan(options, Path(config.path), devices_each(config), on_cpu=on_cpu)


def _check(config: ModelConfig, options: DeepSpeedOptions) -> None:
    faults = batch_faults(config, options)
    if (stages := stages_each(config)) > 1:
        pipeline = config.cite("option.pipeline_parallel_degree", stages)
        faults.add([f"{pipeline}: DeepSpeed divides each layer (option.tensor_parallel_degree); expected 1"])
    with faults.collected(config.where(OPTION)):
        of_file = Faults()
        of_file.add(f"{OPTION}: {fault}" for fault in _reading(config, options).faults)
        of_file.refuse()
    faults.refuse()


def _check_checkpoint(config: ModelConfig, options: DeepSpeedOptions, key: str, path: Path) -> None:
    if key in batch_checkpoints(options):
        check_checkpoint(path, config.option.trust_remote_code)
    else:
        checkpoint_faults(config, path).refuse()


def _without_effect(config: ModelConfig, options: DeepSpeedOptions) -> list[str]:
    ignored = batch_without_effect(config, options)
    try:
        reading = _reading(config, options)
    except ModelLoadError:  # which `_check` says
        return ignored
    ignored += [f"{OPTION}: {remark}" for remark in reading.remarks]
    if options.checkpoint:
        ignored.append(
            f"{config.cite('option.checkpoint', options.checkpoint)} has no effect: the Hugging Face checkpoint is read"
        )
    if reading.plan.is_empty and devices_each(config) == 1:
        ignored.append(
            "option.rolling_batch=deepspeed has no effect: DeepSpeed has nothing to do for a model on one device "
            f"without {OPTION} or option.replace_with_kernel_inject"
        )
    return ignored


def _environment(config: ModelConfig, options: DeepSpeedOptions, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Variables that torch and DeepSpeed read at import: torch's allocator, the devices, and the folder of
    extensions.
    """
    runtime = ENGINE.runtime(config.cache_dir)
    own = Path(runtime.venv) if runtime is not None and runtime.venv else engines_directory(config.cache_dir)
    on_cpu = config.option.device == "cpu" or not has_gpu()
    return {
        **batch_environment(environ),
        "DS_ACCELERATOR": "cpu" if on_cpu else "cuda",
        "TORCH_EXTENSIONS_DIR": str(own / _EXTENSIONS),
    }


ENGINE: Final = Engine(
    name="deepspeed",
    summary="DeepSpeed: divides any model among devices (AutoTP), or keeps one that is larger than memory in host "
    "memory or on NVMe (ZeRO-Inference); under the built-in engine's batch.",
    opens="djl_python.engine.deepspeed.opening:open_batch",
    takes_probe_ids=True,
    options=DeepSpeedOptions,
    settings_type=BuiltInSettings,
    settings=_settings,
    checkpoints=batch_checkpoints,
    requires=("deepspeed",),
    distribution=Distribution(
        # DeepSpeed comes as source, and is built with the packages installed by then.
        cpu=_PINS,
        cuda=_PINS,
        from_source=("deepspeed==0.19.8",),
        extensions=_EXTENSIONS,
        compiles=_COMPILES,
    ),
    check=_check,
    check_checkpoint=_check_checkpoint,
    without_effect=_without_effect,
    environment=_environment,
)
