"""Settings of DJL, LMI and the engines that LMI runs which have no effect here, each with the reason.

Runs in the front end, which says so of a key that a model or a server sets, and where documentation is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


def _by_name(reasons: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in reasons.items() for name in names.split()}


#: `option.*` keys, without the prefix -> why they have no effect.
OPTIONS_WITHOUT_EFFECT: Final[Mapping[str, str]] = _by_name(
    {
        "the KV cache is always paged": "paged_attention",
        "prompts are always read in pieces (option.max_rolling_batch_prefill_tokens)": "enable_chunked_prefill",
        "beginnings that prompts share are always computed once": "enable_prefix_caching use_v2_block_manager",
        "it is about CUDA graphs, which the built-in engine does not use": "enforce_eager max_seq_len_to_capture",
        "the server starts the processes of an engine itself": "mpi_mode multi_gpu multi_node parallel_loading "
        "distributed_executor_backend use_custom_all_reduce disable_custom_all_reduce worker_use_ray",
        "weights are read from the checkpoint as they are": "load_format low_cpu_mem_usage "
        "max_parallel_loading_workers",
        "a model is on one device, or on option.tensor_parallel_degree of them": "device_map",
        "weights keep the checkpoint's format (option.quantize=int8 or int4 rounds them on CPUs)": "load_in_4bit "
        "load_in_8bit fp8_scheme smoothquant_alpha smoothquant_per_token smoothquant_per_channel",
        "the KV cache has the model's number format": "kv_cache_dtype calculate_kv_scales",
        "sequences that the KV cache has no room for are computed again later": "swap_space cpu_offload_gb "
        "preemption_mode num_scheduler_steps scheduler_delay_factor",
        "each worker has a KV cache of its own": "kv_transfer_config lmcache_auto_config lmcache_config_file",
        "adapters are not served yet": "adapters enable_lora fully_sharded_loras is_peft_model lora_dtype "
        "long_lora_scaling_factors lora_extra_vocab_size max_cpu_loras max_lora_rank max_loras",
        "calls are parsed wherever a request has tools": "enable_auto_tool_choice",
        "reasoning is not told apart from the answer yet": "enable_reasoning reasoning_parser",
        "an answer may be as long as the model's context allows": "max_output_len max_output_size",
        "drafts come from option.draft_model_id, or from the text with option.speculative=ngram": "speculative_config "
        "max_draft_len num_speculative_tokens",
        "the tokenizer is the one that transformers loads": "tokenizer_mode",
        "attention is chosen by what the device has": "attention_layout disable_flash_attn use_fp8_context_fmha",
        "it is for Neuron devices": "collectives_layout context_length_estimate enable_mixed_precision_accumulation "
        "enable_saturate_infinity fuse_qkv group_query_attention load_split_model model_loader neuron_optimize_level "
        "rolling_batch_strategy unroll use_stable_diffusion",
        "TensorRT-LLM builds its engines with it": "baichuan_model_version chatglm_model_version gpt_model_version "
        "enable_trt_overlap max_beam_width multi_block_mode output_dir",
        "how to sample is each request's business": "decoding_strategy stop_sequence",
        "a batch is formed at every step": "max_sparsity max_splits rolling_batch_type waiting_steps",
        "answers have LMI's shapes": "bedrock_compat",
        "it is a decorator in model.py": "input_formatter",
        "requests have no sessions yet": "enable_stateful_sessions sessions_s3url",
        "the built-in handler has no sessions (djl_python.session_manager reads it)": "sessions_expiration "
        "sessions_path",
        "a model has no environment of its own yet": "enable_venv",
    }
)

#: Top-level keys of serving.properties -> why they have no effect.
SERVING_WITHOUT_EFFECT: Final[Mapping[str, str]] = _by_name(
    {
        "a model has as many workers as minWorkers says": "maxWorkers max_idle_time cpu.minWorkers cpu.maxWorkers "
        "gpu.minWorkers gpu.maxWorkers cpu.min_workers gpu.min_workers",
        "it is for DJL's engines of Java": "application blockFactory includeTokenTypes normalize pooling reranking "
        "translator translatorFactory",
        "memory is not counted before a model is loaded": "gpu.required_memory_mb required_memory_mb "
        "reserved_memory_mb",
        "metrics are at /metrics": "log_request_metric metrics_aggregation",
    }
)
