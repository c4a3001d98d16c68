"""TensorRT-LLM's arguments for a model: ours under other names, its own, and undeclared ones.

Runs in the engine process, without TensorRT-LLM. Source: LMI's "TensorRT-LLM Engine User Guide", and the classes
`TorchLlmArgs` and `KvCacheConfig` of TensorRT-LLM 1.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..interface import EngineSettings
from ..others import DTYPES, passed_options

_Positive = Annotated[int, Meta(ge=1)]
_Fraction = Annotated[float, Meta(gt=0, le=1)]

_COMPILED: Final = "TensorRT-LLM compiles nothing since its release 1.0"
_QUANTIZED: Final = "TensorRT-LLM runs a checkpoint as it is quantized, and quantizes none"
#: Options of LMI's that have no effect, and why: TensorRT-LLM had them when it compiled models.
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    name: reason
    for reason, names in {
        _COMPILED: "auto_parallel auto_parallel_world_size baichuan_model_version chatglm_model_version "
        "embedding_parallel_mode enable_build_cache fast_build gpt_model_version load_by_shard logits_dtype "
        "multi_block_mode num_checkpoint_workers num_engine_workers output_dir rotary_base rotary_dim "
        "rotary_scaling_factor rotary_scaling_type trtllm_checkpoint_path use_fused_mlp",
        _QUANTIZED: "awq_block_size awq_calib_size awq_format calib_batch_size calib_size multi_query_mode q_format "
        "smoothquant_alpha smoothquant_per_channel smoothquant_per_token use_fp8_context_fmha",
        "each beam is a sequence of its own here": "max_beam_width",
        "the batch is formed anew at every step": "batching_type",
        "the server starts the processes of an engine itself": "mpi_mode multi_node parallel_loading",
        "TensorRT-LLM chooses its all-reduce (option.allreduce_strategy)": "use_custom_all_reduce",
        "drafts are set up with option.speculative_config": "max_draft_len",
    }.items()
    for name in names.split()
}


class TrtllmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `option.*` keys that LMI documents for TensorRT-LLM, beside those of every engine."""

    max_output_len: Annotated[
        _Positive | None,
        Meta(
            description="TensorRT-LLM: tokens of prompt and answer together, as in LMI since 0.30, where "
            "option.max_model_len is unset.",
            extra={"aliases": ["max_seq_len"]},
        ),
    ] = None
    max_num_sequences: Annotated[
        _Positive | None,
        Meta(
            description="TensorRT-LLM: sequences generated at once; unset: option.max_rolling_batch_size.",
            extra={"aliases": ["max_batch_size"]},
        ),
    ] = None
    tokens_per_block: Annotated[_Positive | None, Meta(description="TensorRT-LLM: tokens of a block of its cache.")] = (
        None
    )
    batch_scheduler_policy: Annotated[
        Literal["max_utilization", "guaranteed_no_evict", "static_batch"] | None,
        Meta(
            description="TensorRT-LLM: policy of the scheduler; unset: guaranteed_no_evict, which pauses no sequence."
        ),
    ] = None
    kv_cache_free_gpu_mem_fraction: Annotated[
        _Fraction | None,
        Meta(
            description="TensorRT-LLM: share of the memory for its cache that the weights leave free, of all of a "
            "model's workers on a GPU; unset: 0.9.",
            extra={"aliases": ["free_gpu_memory_fraction"]},
        ),
    ] = None
    enable_kv_cache_reuse: Annotated[
        bool | None,
        Meta(
            description="TensorRT-LLM: prefix caching; unset: true.",
            extra={"aliases": ["enable_block_reuse"]},
        ),
    ] = None
    enable_chunked_context: Annotated[
        bool | None,
        Meta(
            description="TensorRT-LLM: chunked prefill; without it, prompts beyond "
            "option.max_rolling_batch_prefill_tokens (unset: 8192) are refused; unset: false.",
            extra={"aliases": ["enable_chunked_prefill"]},
        ),
    ] = None
    enable_trt_overlap: Annotated[
        bool | None, Meta(description="TensorRT-LLM: prepare a step while the last one runs; unset: true.")
    ] = None
    quantize: Annotated[
        str,
        Meta(
            description="TensorRT-LLM: how the checkpoint is quantized; it is run as it is, whatever this says.",
            extra={"aliases": ["quantization"]},
        ),
    ] = ""
    kv_cache_dtype: Annotated[str, Meta(description="TensorRT-LLM: number format of the KV cache: auto, fp8 ...")] = ""
    guided_decoding_backend: Annotated[
        Literal["xgrammar", "llguidance"],
        Meta(description="TensorRT-LLM: library that enforces schemas and regular expressions."),
    ] = "xgrammar"
    moe_backend: Annotated[str, Meta(description="TensorRT-LLM: kernels for mixtures of experts: CUTLASS ...")] = ""
    use_cuda_graph: Annotated[bool | None, Meta(description="TensorRT-LLM: CUDA graphs; unset: true.")] = None


class TrtllmSettings(EngineSettings, frozen=True, kw_only=True):
    """What TensorRT-LLM is opened with. `own` are the model's values of `TrtllmOptions`."""

    own: TrtllmOptions = TrtllmOptions()


def llm_arguments(
    settings: TrtllmSettings, known: Set[str], of_the_cache: Set[str], devices: int
) -> tuple[dict[str, Any], list[str]]:
    """(the arguments of `tensorrt_llm.LLM`, options that are neither ours nor TensorRT-LLM's).

    Args:
        known: names of its arguments.
        of_the_cache: names of the fields of `kv_cache_config`, which LMI's users set as options too.
        devices: how many share a model for which `tensor_parallel_degree` says: as many as can.
    """
    own = settings.own
    arguments: dict[str, Any] = {
        "model": settings.model_path,
        "dtype": DTYPES[settings.dtype],
        "tensor_parallel_size": settings.tensor_parallel_degree or devices,
        "pipeline_parallel_size": settings.pipeline_parallel_degree,
        "trust_remote_code": settings.trust_remote_code,
        "max_batch_size": own.max_num_sequences or settings.max_batch_size,
        "max_seq_len": settings.max_model_len or own.max_output_len,
        "enable_chunked_prefill": own.enable_chunked_context,
        "disable_overlap_scheduler": None if own.enable_trt_overlap is None else not own.enable_trt_overlap,
        "guided_decoding_backend": own.guided_decoding_backend,
    }
    if "max_rolling_batch_prefill_tokens" in settings.properties:  # our default is not for GPUs
        arguments["max_num_tokens"] = settings.max_prefill_tokens
    if own.batch_scheduler_policy is not None:
        arguments["scheduler_config"] = {"capacity_scheduler_policy": own.batch_scheduler_policy.upper()}
    if own.moe_backend:
        arguments["moe_config"] = {"backend": own.moe_backend}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if own.use_cuda_graph is False:
        arguments["cuda_graph_config"] = None
    passed = {
        name: _value(text)
        for name, text in passed_options(settings.properties, TrtllmOptions).items()
        if name not in WITHOUT_EFFECT
    }
    arguments["kv_cache_config"] = _cache(settings) | {
        name: value for name, value in passed.items() if name in of_the_cache - known
    }
    arguments |= {name: value for name, value in passed.items() if name in known and name not in arguments}
    return arguments, sorted(passed.keys() - known - of_the_cache)


def _cache(settings: TrtllmSettings) -> dict[str, Any]:
    """The fields of `kv_cache_config` that are set. Workers that share a GPU start one after the other."""
    own = settings.own
    fraction = own.kv_cache_free_gpu_mem_fraction
    if fraction is None and settings.workers > 1:
        fraction = 0.9
    fields = {
        "free_gpu_memory_fraction": None if fraction is None else fraction / settings.workers,
        "enable_block_reuse": own.enable_kv_cache_reuse,
        "tokens_per_block": own.tokens_per_block,
        "dtype": own.kv_cache_dtype or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _value(text: str) -> Any:
    """An option as TensorRT-LLM takes it: objects and lists from JSON. It reads numbers and booleans itself."""
    if text.strip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:  # not JSON after all, which it will say
            return text
    return text


def end_ids(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that end a text, as generation_config.json or else config.json has them; (): neither says.

    Example:
        >>> end_ids({"eos_token_id": 2}, {"eos_token_id": [2, 7]})
        (2, 7)
    """
    eos = generation_config.get("eos_token_id", _text_config(config).get("eos_token_id"))
    ids = eos if isinstance(eos, list) else [eos]
    return tuple(token_id for token_id in ids if isinstance(token_id, int))


def vocabulary_size(config: Mapping[str, Any]) -> int | None:
    """How many token ids a model takes, by its config.json; None: it does not say."""
    size = _text_config(config).get("vocab_size")
    return size if isinstance(size, int) else None


def stated_context(config: Mapping[str, Any]) -> int | None:
    """How long texts may be, by a model's config.json; None: it does not say."""
    length = _text_config(config).get("max_position_embeddings")
    return length if isinstance(length, int) else None


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the language model, also in a model that takes more than text."""
    own = config.get("text_config")
    return own if isinstance(own, dict) else config
