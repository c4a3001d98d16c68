"""vLLM's engine arguments for a model: ours under other names, its own, and undeclared ones.

Runs in the engine process, without vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ..adapter_options import LMI_MAX_LORAS, AdaptersFolder, EnableLora, LoraModules, MaxCpuLoras, MaxLoraRank, MaxLoras
from ..interface import EngineSettings
from ..others import DTYPES, passed_options

#: The ranks that vLLM has room for.
_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
#: Places for adapters beyond those that there may be, on CPUs.
SPARE_PLACES: Final = 2
#: Options of LMI's that have no effect, and why.
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    name: reason
    for reason, names in {
        "vLLM no longer has it": "calculate_kv_scales draft_model_tp_size enable_prompt_adapter "
        "long_lora_scaling_factors lora_extra_vocab_size max_seq_len_to_capture num_scheduler_steps preemption_mode "
        "record_acceptance_rate scheduler_delay_factor swap_space use_v2_block_manager worker_use_ray",
        "vLLM's KV cache is always paged": "paged_attention",
        "the batch is formed anew at every step": "max_sparsity max_splits rolling_batch_type waiting_steps",
        "the server starts the processes of an engine itself": "mpi_mode multi_gpu multi_node parallel_loading",
        "weights are read from the checkpoint as they are": "low_cpu_mem_usage",
        "option.quantize says how vLLM quantizes weights": "load_in_4bit load_in_8bit",
        "tool calls are parsed in every request that has tools": "enable_auto_tool_choice",
        "vLLM's own name for the opposite is option.disable_custom_all_reduce": "use_custom_all_reduce",
    }.items()
    for name in names.split()
}
_Positive = Annotated[int, Meta(ge=1)]
_Gibibytes = Annotated[float, Meta(ge=0)]


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `option.*` keys that LMI documents for vLLM and LMI-Dist, beside those of every engine."""

    quantize: Annotated[
        str,
        Meta(
            description="vLLM: how weights are quantized as they are loaded (fp8, bitsandbytes, awq ...); unset: as "
            "the checkpoint says.",
            extra={"aliases": ["quantization"]},
        ),
    ] = ""
    enforce_eager: Annotated[bool | None, Meta(description="vLLM: no CUDA graphs: slower, in less memory.")] = None
    enable_prefix_caching: Annotated[bool | None, Meta(description="vLLM: prefix caching; unset: vLLM's default.")] = (
        None
    )
    enable_chunked_prefill: Annotated[
        bool | None, Meta(description="vLLM: chunked prefill; unset: vLLM's default.")
    ] = None
    kv_cache_dtype: Annotated[str, Meta(description="vLLM: number format of the KV cache: auto, fp8 ...")] = ""
    load_format: Annotated[str, Meta(description="vLLM: format of the checkpoint's weights; unset: auto.")] = ""
    tokenizer_mode: Annotated[str, Meta(description="vLLM: auto, slow or mistral.")] = ""
    cpu_offload_gb: Annotated[
        _Gibibytes | None,
        Meta(
            description="vLLM: GiB of weights that each GPU keeps in the host's memory.",
            extra={"aliases": ["cpu_offload_gb_per_gpu"]},
        ),
    ] = None
    speculative_draft_model: Annotated[
        str, Meta(description="LMI-Dist, vLLM: a draft model, by its hub id or path.")
    ] = ""
    speculative_length: Annotated[
        int,
        Meta(
            ge=1,
            description="LMI-Dist, vLLM: tokens drafted at once, with option.speculative_draft_model.",
            extra={"aliases": ["num_speculative_tokens"]},
        ),
    ] = 5
    enable_lora: EnableLora = None
    adapters: AdaptersFolder = "adapters"
    lora_modules: LoraModules = ""
    max_loras: MaxLoras = None
    max_cpu_loras: MaxCpuLoras = None
    max_lora_rank: MaxLoraRank = None
    lora_dtype: Annotated[str, Meta(description="vLLM: number format of adapters; unset: the model's.")] = ""
    fully_sharded_loras: Annotated[
        bool | None, Meta(description="vLLM: shard adapters fully over the GPUs that share a model.")
    ] = None


class VllmSettings(EngineSettings, frozen=True, kw_only=True):
    """vLLM's settings. `own`: engine arguments by vLLM's names, as its command line takes them."""

    own: dict[str, str] = msgspec.field(default_factory=dict)


#: Options that are no engine arguments of vLLM's under these names.
_NOT_ITS_NAMES: Final = ("speculative_draft_model", "speculative_length", "adapters", "lora_modules")


def lora_room(own: Mapping[str, str], ranks: Sequence[int], *, cpu: bool) -> dict[str, str]:
    """The engine arguments that make room for a model's adapters, whose `ranks` these are.

    On CPUs vLLM computes sequences without an adapter wrongly while all of its places for adapters are taken (0.32):
    so one place stays free there, and one is for an adapter that is being replaced.
    """
    highest = max(ranks, default=0)
    arguments = {}
    if "max_lora_rank" not in own and highest:
        arguments["max_lora_rank"] = str(next((rank for rank in _LORA_RANKS if rank >= highest), highest))
    if cpu:
        places = max(int(own["max_loras"]), len(ranks)) + SPARE_PLACES
        arguments["max_loras"] = str(places)
        if "max_cpu_loras" in own:  # never fewer, in vLLM
            arguments["max_cpu_loras"] = str(max(int(own["max_cpu_loras"]), places))
    return arguments


def own_arguments(options: VllmOptions) -> dict[str, str]:
    """The engine arguments that a model's own options set."""
    values: dict[str, Any] = {
        name: value
        for name, value in msgspec.structs.asdict(options).items()
        if value not in ("", None) and name not in _NOT_ITS_NAMES
    }
    if options.enable_lora:
        values["max_loras"] = options.max_loras or LMI_MAX_LORAS
    if "quantize" in values:
        values["quantization"] = values.pop("quantize")
    if options.speculative_draft_model:
        values["speculative_config"] = {
            "model": options.speculative_draft_model,
            "num_speculative_tokens": options.speculative_length,
        }
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def engine_arguments(settings: VllmSettings, known: frozenset[str], devices: int) -> tuple[dict[str, str], list[str]]:
    """(engine arguments by name, options that are neither ours nor vLLM's).

    Args:
        known: names of vLLM's engine arguments.
        devices: how many share a model for which `tensor_parallel_degree` says: as many as can.
    """
    properties = settings.properties
    arguments = {
        "model": settings.model_path,
        "dtype": DTYPES[settings.dtype],
        "tensor_parallel_size": str(settings.tensor_parallel_degree or devices),
        "pipeline_parallel_size": str(settings.pipeline_parallel_degree),
        "max_num_seqs": str(settings.max_batch_size),
        "gpu_memory_utilization": str(settings.gpu_memory_utilization / settings.workers),
        # Alternatives that requests may ask for; OpenAI's limit, which is vLLM's default, is the dialects' business.
        "max_logprobs": "-1",
    }
    if settings.trust_remote_code:
        arguments["trust_remote_code"] = "true"
    if settings.max_model_len is not None:
        arguments["max_model_len"] = str(settings.max_model_len)
    if "max_rolling_batch_prefill_tokens" in properties:  # our default is not for GPUs
        arguments["max_num_batched_tokens"] = str(settings.max_prefill_tokens)
    arguments |= settings.own
    rest = passed_options(properties, VllmOptions)
    rest = {name: value for name, value in rest.items() if name not in WITHOUT_EFFECT}
    arguments |= {name: value for name, value in rest.items() if name in known and name not in arguments}
    return arguments, sorted(name for name in rest if name not in known)


def command_line(arguments: Mapping[str, str], flags: frozenset[str]) -> list[str]:
    """Arguments as vLLM's command line has them.

    Args:
        flags: names of those that are switched on or off, and have no value.

    Example:
        >>> command_line({"max_num_seqs": "8", "enforce_eager": "False"}, frozenset({"enforce_eager"}))
        ['--max-num-seqs=8', '--no-enforce-eager']
    """
    line = []
    for name, value in arguments.items():
        dashed = name.replace("_", "-")
        if name in flags and value.lower() in ("true", "false"):
            line.append(f"--{dashed}" if value.lower() == "true" else f"--no-{dashed}")
        else:
            line.append(f"--{dashed}={value}")
    return line
