"""DeepSpeed's settings for a model: from its own configuration file (option.deepspeed_config_path) and our options.

Runs in every process, without DeepSpeed. The file has the keys of https://www.deepspeed.ai/docs/config-json/ (for ZeRO)
and of `deepspeed.init_inference` (https://deepspeed.readthedocs.io/en/latest/inference-init.html). Other keys are
ignored, with a remark that gives the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from ...config import read_json_object
from ...core.errors import ModelLoadError
from ...core.names import did_you_mean
from .options import DeepSpeedOptions

OPTION: Final = "option.deepspeed_config_path"
_STAGE: Final = 3
_DEVICES: Final = ("cpu", "nvme")
#: Other names of keys, in `init_inference` and in DeepSpeed's older releases.
_ALIASES: Final[Mapping[str, str]] = {
    "tp": "tensor_parallel",
    "kernel_inject": "replace_with_kernel_inject",
    "zero": "zero_optimization",
    "max_tokens": "max_out_tokens",
    "min_tokens": "min_out_tokens",
}
_INTEGER: Final = (Annotated[int, msgspec.Meta(ge=1)], "an integer >= 1")
_SWITCH: Final = (bool, "true or false")
#: `init_inference`'s settings of kernels and of tensor parallelism: the type of each, and its words.
_OF_KERNELS: Final[Mapping[str, tuple[Any, str]]] = {
    "max_out_tokens": _INTEGER,
    "min_out_tokens": _INTEGER,
    "use_triton": _SWITCH,
    "triton_autotune": _SWITCH,
}
_OF_TENSOR_PARALLEL: Final[Mapping[str, tuple[Any, str]]] = {
    "enabled": _SWITCH,
    "tp_grain_size": _INTEGER,
    "tp_size": _INTEGER,
}
_USED: Final = ("zero_optimization", "aio", "tensor_parallel", "replace_with_kernel_inject", *_OF_KERNELS)


def _by_name(reasons: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in reasons.items() for name in names.split()}


#: DeepSpeed's other keys -> why they have no effect.
_WITHOUT_EFFECT: Final[Mapping[str, str]] = _by_name(
    {
        "it is about training": "activation_checkpointing amp autotuning bf16_optimizer communication_data_type "
        "compression_training curriculum_learning data_efficiency data_types dataloader_drop_last disable_allgather "
        "eigenvalue elasticity gradient_accumulation_steps gradient_allreduce_op gradient_clipping "
        "gradient_predivide_factor hybrid_engine optimizer pipeline prescale_gradients progressive_layer_drop "
        "quantize_training scheduler seq_parallel_communication_data_type sparse_gradients torch_autocast "
        "train_batch_size train_micro_batch_size_per_gpu vocabulary_size zero_allow_untested_optimizer "
        "zero_force_ds_cpu_optimizer",
        "option.dtype says it": "bf16 bfloat16 dtype fp16",
        "option.tensor_parallel_degree says it": "mp_size mpu",
        "weights are read from the Hugging Face checkpoint": "base_dir checkpoint checkpoint_config ckpt_config "
        "keep_module_on_host save_mp_checkpoint_path set_empty_params training_mp_size use_node_local_storage",
        "weights keep the checkpoint's format": "quant weight_quantization",
        "steps have no fixed shape": "enable_cuda_graph",
        "the model's own code decides what its layers take and return": "return_tuple sparse_attention tm "
        "transposed_mode triangular_masking",
        "a file can't name classes": "injection_dict injection_policy injection_policy_tuple",
        "experts are divided as other weights are": "ep_group ep_mp_group ep_size expert_group expert_mp_group "
        "expert_parallel moe moe_experts moe_type num_experts",
        "metrics are at /metrics": "comet comms_logger csv_monitor dump_state flops_profiler log_level "
        "memory_breakdown steps_per_print tensorboard wall_clock_breakdown wandb",
        "it is for other devices, or for older releases": "args config disable_python_gc replace_method",
    }
)
#: Keys of `zero_optimization` that configure optimizers and gradients.
_OF_TRAINING: Final = frozenset(
    "cpu_offload cpu_offload_use_pin_memory contiguous_gradients elastic_checkpoint grad_hooks "
    "ignore_unused_parameters legacy_stage1 load_from_fp32_weights offload_optimizer override_module_apply "
    "overlap_comm reduce_bucket_size reduce_scatter round_robin_gradients stage3_gather_16bit_weights_on_model_save "
    "stage3_gather_fp16_weights_on_model_save sub_group_size".split()
)


class PartitionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What DeepSpeed does for a model.

    Attributes:
        zero: `zero_optimization`, of stage 3, and beside it `aio`: weights are partitioned; {}: they are not.
        kernels: `init_inference`'s settings of its kernels; None: there are none.
        tensor_parallel: further values of `tensor_parallel`.
        source: the file, for errors; "": there is none.
    """

    zero: dict[str, Any] = {}
    kernels: dict[str, Any] | None = None
    tensor_parallel: dict[str, Any] = {}
    source: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether DeepSpeed has nothing to do for a model on one device."""
        return not self.zero and self.kernels is None


class Reading(msgspec.Struct, frozen=True):
    """A plan, its faults, and remarks on keys without effect; lines without the option's name."""

    plan: PartitionPlan
    faults: list[str]
    remarks: list[str]


def read_plan(options: DeepSpeedOptions, directory: Path, degree: int, *, on_cpu: bool) -> Reading:
    """DeepSpeed's plan by the options, and by their file if they name one.

    Args:
        directory: relative paths are from there.
        degree: how many devices share the model; 0: as many as can.
        on_cpu: whether the model computes on the CPU.

    Raises:
        ModelLoadError: the file can't be read, or is not a JSON object.
    """
    reading = _Reading(degree, on_cpu)
    source, configuration = "", dict[str, Any]()
    if options.deepspeed_config_path:
        path = directory / options.deepspeed_config_path
        source, configuration = str(path), _read(path)
    configuration = reading.known(configuration)
    inject = reading.typed(configuration, {"replace_with_kernel_inject": _SWITCH})
    kernels = options.replace_with_kernel_inject or inject.get("replace_with_kernel_inject", False)
    zero = reading.zero(configuration, directory)
    if kernels and on_cpu:
        reading.faults.append("replace_with_kernel_inject: DeepSpeed's kernels are for GPUs, the model is on the CPU")
    if kernels and zero:
        reading.faults.append("replace_with_kernel_inject and zero_optimization: expected one of them")
    plan = PartitionPlan(
        zero=zero,
        kernels=reading.typed(configuration, _OF_KERNELS) if kernels else None,
        tensor_parallel=reading.tensor_parallel(configuration.get("tensor_parallel", {})),
        source=source,
    )
    return Reading(plan, reading.faults, reading.remarks)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelLoadError(f"{path}: there is no such file; expected DeepSpeed's configuration")
    return read_json_object(path)


class _Reading:
    """Reads the parts of a file, and collects faults and remarks."""

    def __init__(self, degree: int, on_cpu: bool) -> None:
        self._degree, self._on_cpu = degree, on_cpu
        self.faults: list[str] = []
        self.remarks: list[str] = []

    def known(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """The keys that have an effect, by their main names."""
        effective = {}
        for key, value in configuration.items():
            main = _ALIASES.get(key, key)
            if main in _USED:
                effective[main] = value
            elif reason := _WITHOUT_EFFECT.get(key):
                self._ignored(key, reason)
            else:
                self._ignored(key, "DeepSpeed has no such key" + did_you_mean(key, (*_USED, *_WITHOUT_EFFECT)))
        return effective

    def typed(self, given: Mapping[str, Any], types: Mapping[str, tuple[Any, str]], prefix: str = "") -> dict[str, Any]:
        """The values with a declared type, as far as they have it."""
        values = {}
        for key, (kind, words) in types.items():
            if key not in given:
                continue
            try:
                values[key] = msgspec.convert(given[key], kind)
            except msgspec.ValidationError:
                self.faults.append(f"{prefix}{key}: {json.dumps(given[key])}: expected {words}")
        return values

    def zero(self, configuration: Mapping[str, Any], directory: Path) -> dict[str, Any]:
        """The configuration of ZeRO; {} if weights are not partitioned."""
        zero = self._object("zero_optimization", configuration.get("zero_optimization", {}))
        stage = zero.get("stage", 0)
        if stage in (1, 2):
            self._ignored("zero_optimization", f"stage {stage} partitions what training keeps; expected stage {_STAGE}")
        if stage != _STAGE:
            if zero and stage not in (0, 1, 2):
                self.faults.append(f"zero_optimization.stage: {json.dumps(stage)}: expected {_STAGE}")
            if "aio" in configuration:
                self._ignored("aio", f"it is about zero_optimization of stage {_STAGE}")
            return {}
        for key in sorted(_OF_TRAINING & zero.keys()):
            self._ignored(f"zero_optimization.{key}", "it is about training")
        kept = {key: value for key, value in zero.items() if key not in _OF_TRAINING}
        if "offload_param" in kept:
            kept["offload_param"] = self._offload(kept["offload_param"], directory)
        aio = self._object("aio", configuration.get("aio", {}))
        return {"zero_optimization": kept} | ({"aio": aio} if aio else {})

    def tensor_parallel(self, value: Any) -> dict[str, Any]:
        """Further values of `tensor_parallel`; an option sets `tp_size`."""
        given = self._object("tensor_parallel", value)
        for key in sorted(given.keys() - _OF_TENSOR_PARALLEL):
            self._ignored(f"tensor_parallel.{key}", f"expected {', '.join(sorted(_OF_TENSOR_PARALLEL))}")
        values = self.typed(given, _OF_TENSOR_PARALLEL, "tensor_parallel.")
        size, degree = values.pop("tp_size", None), self._degree
        if size is not None and degree and size != degree:
            self.faults.append(
                f"tensor_parallel.tp_size: {json.dumps(size)}: option.tensor_parallel_degree gives the model {degree} "
                "device(s); expected the same"
            )
        values.pop("enabled", None)
        return values

    def _offload(self, value: Any, directory: Path) -> dict[str, Any]:
        """`offload_param`, with absolute paths."""
        offload = dict(self._object("zero_optimization.offload_param", value))
        where, device = "zero_optimization.offload_param", offload.get("device", "none")
        if device == "none":
            return offload
        if device not in _DEVICES:
            self.faults.append(f"{where}.device: {json.dumps(device)}: expected {' or '.join(_DEVICES)}")
        elif device == "nvme":
            path = offload.get("nvme_path")
            if not isinstance(path, str) or not path:
                self.faults.append(f"{where}.nvme_path: expected a directory, for device nvme")
            else:
                offload["nvme_path"] = str(directory / path)
        elif self._on_cpu:
            self._ignored(f"{where}.device", "the model computes on the CPU, whose memory has its weights")
        return offload

    def _object(self, key: str, value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.faults.append(f"{key}: expected a JSON object")
        return {}

    def _ignored(self, key: str, reason: str) -> None:
        self.remarks.append(f"{key} has no effect: {reason}")
