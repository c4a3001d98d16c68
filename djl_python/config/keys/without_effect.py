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
        "a GPU's steps are CUDA graphs for contexts of any length (option.enforce_eager)": "enable_cuda_graph "
        "max_seq_len_to_capture",
        "the server starts the processes of an engine itself": "mpi_mode multi_gpu multi_node parallel_loading "
        "distributed_executor_backend use_custom_all_reduce disable_custom_all_reduce worker_use_ray "
        "ray_workers_use_nsight",
        "weights are read from the checkpoint as they are": "load_format low_cpu_mem_usage "
        "max_parallel_loading_workers model_loader_extra_config save_mp_checkpoint_path training_mp_size "
        "use_tqdm_on_load",
        "what a layer takes and answers is the model's business": "return_tuple triangular_masking",
        "weights keep the checkpoint's format (option.quantize=int8 or int4 rounds them on CPUs)": "load_in_4bit "
        "load_in_8bit fp8_activation_scheme fp8_scheme quantization_param_path smoothquant_alpha "
        "smoothquant_per_token smoothquant_per_channel",
        "the KV cache has the model's number format": "kv_cache_dtype calculate_kv_scales",
        "sequences that the KV cache has no room for are computed again later": "swap_space cpu_offload_gb "
        "preemption_mode num_lookahead_slots num_scheduler_steps scheduler_delay_factor",
        "each worker has a KV cache of its own": "kv_transfer_config lmcache_auto_config lmcache_config_file",
        "adapters are served by vLLM alone (option.rolling_batch=vllm)": "adapters enable_lora fully_sharded_loras "
        "is_peft_model lora_dtype lora_modules long_lora_scaling_factors lora_extra_vocab_size max_cpu_loras "
        "max_lora_rank max_loras",
        "calls are parsed wherever a request has tools": "enable_auto_tool_choice",
        "an answer may be as long as the model's context allows": "max_output_len max_output_size",
        "drafts come from option.draft_model_id, or from the text with option.speculative=ngram": "speculative_config "
        "max_draft_len num_speculative_tokens ngram_prompt_lookup_max ngram_prompt_lookup_min record_acceptance_rate "
        "speculative_draft_tensor_parallel_size speculative_model speculative_model_quantization",
        "the tokenizer is the checkpoint's, which transformers loads": "skip_tokenizer_init tokenizer tokenizer_mode "
        "tokenizer_revision",
        "what config.json says counts": "config_format hf_config_path hf_overrides model_impl rope_scaling rope_theta",
        "sampling defaults are those of the checkpoint's generation_config.json": "generation_config "
        "override_generation_config",
        "a model is served under its own name (NAME=DIR)": "served_model_name",
        "what is downloaded is kept where SERVING_DOWNLOAD_DIR and HF_HOME say": "download_dir",
        "the server writes its own log and metrics": "collect_detailed_traces disable_log_requests disable_log_stats "
        "enable_prompt_tokens_details max_log_len otlp_traces_endpoint show_hidden_metrics_for_version",
        "a message's content has the form that the template reads, and its answer the role assistant": "response_role "
        "chat_template_content_format",
        "images come in requests": "allowed_local_media_path disable_mm_preprocessor_cache mm_processor_cache_gb "
        "mm_processor_kwargs skip_mm_profiling",
        "grammars are compiled by xgrammar": "guided_decoding_disable_any_whitespace guided_decoding_disable_fallback "
        "structured_outputs_config",
        "it is for vLLM (option.rolling_batch=vllm)": "additional_config all2all_backend async_scheduling "
        "attention_backend code_revision compilation_config convert cuda_graph_sizes data_parallel_backend "
        "data_parallel_size data_parallel_size_local disable_async_output_proc disable_cascade_attn "
        "disable_chunked_mm_input disable_hybrid_kv_cache_manager disable_sliding_window enable_eplb "
        "enable_expert_parallel enable_prompt_adapter enable_sleep_mode eplb_config expert_placement_strategy "
        "logits_processor_pattern logits_processors long_prefill_token_threshold max_logprobs "
        "max_long_partial_prefills max_num_partial_prefills max_prompt_adapters num_gpu_blocks_override "
        "override_neuron_config override_pooler_config prefix_caching_hash_algo return_tokens_as_token_ids runner "
        "scheduler_cls scheduling_policy worker_cls worker_extension_cls",
        "attention is chosen by what the device has": "attention_layout disable_flash_attn use_fp8_context_fmha",
        "it is for Neuron devices": "collectives_layout compiled_graph_path context_length_estimate "
        "draft_model_compiled_path enable_mixed_precision_accumulation enable_saturate_infinity fuse_qkv "
        "group_query_attention load_split_model model_loader neuron_optimize_level on_device_embedding "
        "rolling_batch_strategy shard_over_sequence unroll use_stable_diffusion",
        "no built-in handler makes images": "height num_images_per_prompt width",
        "no built-in handler makes embeddings": "normalize pooling",
        "TensorRT-LLM builds its engines with it": "awq_block_size awq_calib_size awq_format baichuan_model_version "
        "calib_batch_size calib_size chatglm_model_version enable_trt_overlap gpt_model_version load_by_shard "
        "logits_dtype max_beam_width multi_block_mode multi_query_mode num_checkpoint_workers num_engine_workers "
        "output_dir q_format rotary_base rotary_dim rotary_scaling_factor rotary_scaling_type trtllm_checkpoint_path "
        "use_fused_mlp",
        "how to sample, and how long an answer may be, is each request's business": "decoding_strategy max_new_tokens "
        "seed stop_sequence",
        "a batch is formed at every step": "max_sparsity max_splits rolling_batch_type waiting_steps",
        "answers have LMI's shapes": "bedrock_compat",
        "it is for DJL's engines of Java": "cpuArenaAllocator customOpLibrary disablePerSessionThreads executionMode "
        "extraFiles hasParameter interOpNumThreads intraOpNumThreads mapLocation memoryPatternOptimization modelName "
        "optLevel ortDevice trainParam",
        "it is a decorator in model.py": "input_formatter",
        "load_on_devices says where workers are": "device_id",
        "sessions are kept in option.sessions_path alone": "sessions_s3url",
    }
)

#: Top-level keys of serving.properties -> why they have no effect.
SERVING_WITHOUT_EFFECT: Final[Mapping[str, str]] = _by_name(
    {
        "it is for DJL's engines of Java": "application blockFactory centerCrop includeTokenTypes normalize padding "
        "pooling reranking resize toTensor translator translatorFactory truncation",
        "memory is not counted before a model is loaded": "gpu.required_memory_mb required_memory_mb "
        "reserved_memory_mb gpu.reserved_memory_mb",
        "metrics are at /metrics": "log_model_metric log_request_metric metrics_aggregation",
        "the server starts the processes of an engine itself": "parallel_loading",
    }
)

#: Keys of config.properties, and SERVING_<KEY>, of DJL's -> why they have no effect.
SERVER_WITHOUT_EFFECT: Final[Mapping[str, str]] = _by_name(
    {
        "a server that can load none of its models ends anyway, and workers that end are started again": "fail_fast",
        "errors have the codes of each API": "bad_request_http_code server_error_http_code timeout_http_code "
        "wlm_error_http_code",
        "answers to asynchronous requests are held in memory (memory_cache_size)": "cache_batch cache_multitenant "
        "ddb_cache ddb_table_name s3_cache s3_cache_autocreate s3_cache_bucket s3_cache_key_prefix",
        "encryption is the business of a proxy": "certificate_file keystore keystore_pass keystore_type "
        "private_key_file",
        "option.predict_timeout is how long each piece of a stream may take": "chunked_read_timeout",
        "a server is one machine's": "cluster_address",
        "/ping tells models that failed and workers that are missing, and no rates of errors": "error_rate_any "
        "error_rate_model error_rate_server error_rate_wlm",
        "it is about DJL's own HTTP server": "features netty_client_threads number_of_netty_threads use_native_io",
        "it is for plug-ins in Java": "plugin_folder",
        "metrics are at /metrics": "prometheus",
        "memory is not counted before a model is loaded": "reserved_memory_mb",
    }
)
