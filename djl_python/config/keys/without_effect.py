"""Settings of DJL, LMI and the engines that LMI runs which have no effect here, each with the reason.

Runs in the front end, which warns about such keys, and where documentation is made.
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
        "prefill is always chunked (option.max_rolling_batch_prefill_tokens)": "enable_chunked_prefill",
        "prefix caching is always on": "enable_prefix_caching use_v2_block_manager",
        "a GPU's steps are CUDA graphs for contexts of any length (option.enforce_eager)": "cudagraph_capture_sizes "
        "enable_cuda_graph max_cudagraph_capture_size max_seq_len_to_capture",
        "the server starts the processes of an engine itself": "mpi_mode multi_gpu multi_node parallel_loading "
        "distributed_executor_backend use_custom_all_reduce disable_custom_all_reduce worker_use_ray "
        "ray_workers_use_nsight",
        "weights are read from the checkpoint as they are": "ignore_patterns load_format low_cpu_mem_usage "
        "max_parallel_loading_workers model_loader_extra_config pt_load_map_location safetensors_load_strategy "
        "save_mp_checkpoint_path training_mp_size use_tqdm_on_load",
        "the model's own code decides what its layers take and return": "return_tuple triangular_masking",
        "weights keep the checkpoint's format (on CPUs, option.quantize=int8 or int4 quantizes them)": "load_in_4bit "
        "load_in_8bit fp8_activation_scheme fp8_scheme quantization_param_path smoothquant_alpha "
        "smoothquant_per_token smoothquant_per_channel",
        "the KV cache is in the model's number format": "kv_cache_dtype kv_cache_dtype_skip_layers calculate_kv_scales",
        "option.kv_cache_memory_mb sets the size of the KV cache": "kv_cache_memory_bytes",
        "the environment variable HF_TOKEN sets it": "hf_token",
        "the environment variable OTEL_EXPORTER_OTLP_TRACES_ENDPOINT sets it": "otlp_traces_endpoint",
        "sequences without room in the KV cache are recomputed later": "swap_space cpu_offload_gb "
        "preemption_mode num_lookahead_slots num_scheduler_steps scheduler_delay_factor",
        "each worker has a KV cache of its own": "kv_transfer_config lmcache_auto_config lmcache_config_file",
        "adapters are computed in the model's number format": "lora_dtype",
        "an adapter's own files set its scaling, and it uses the model's vocabulary": "long_lora_scaling_factors "
        "lora_extra_vocab_size",
        "adapters are beside the model, in the directory adapters": "is_peft_model",
        "it is for GPUs that share a model (option.rolling_batch=vllm)": "fully_sharded_loras",
        "tool calls are parsed in every request that has tools": "enable_auto_tool_choice",
        "an answer may be as long as the model's context allows": "max_output_len max_output_size",
        "drafts come from option.draft_model_id, or from the text with option.speculative=ngram": "max_draft_len "
        "num_speculative_tokens ngram_prompt_lookup_max ngram_prompt_lookup_min record_acceptance_rate "
        "spec_decoding_acceptance_method speculative_disable_by_batch_size speculative_disable_mqa_scorer "
        "speculative_draft_tensor_parallel_size speculative_max_model_len speculative_model "
        "speculative_model_quantization typical_acceptance_sampler_posterior_alpha "
        "typical_acceptance_sampler_posterior_threshold",
        "the tokenizer is the checkpoint's, which transformers loads": "skip_tokenizer_init tokenizer tokenizer_mode "
        "tokenizer_revision",
        "the checkpoint's config.json sets it": "config_format hf_config_path hf_overrides model_impl "
        "rope_scaling rope_theta",
        "sampling defaults are those of the checkpoint's generation_config.json": "generation_config "
        "override_generation_config",
        "a model is served under its own name (NAME=DIR)": "served_model_name",
        "the directory of downloads is set by SERVING_DOWNLOAD_DIR and HF_HOME": "download_dir",
        "the server writes its own log and metrics": "aggregate_engine_logging collect_detailed_traces "
        "cudagraph_metrics disable_log_requests disable_log_stats enable_layerwise_nvtx_tracing enable_log_requests "
        "enable_logging_iteration_details enable_mfu_metrics enable_prompt_tokens_details kv_cache_metrics "
        "kv_cache_metrics_sample max_log_len show_hidden_metrics_for_version",
        "a message's content has the form that the template reads, and its answer the role assistant": "response_role "
        "chat_template_content_format",
        "images come in requests": "allowed_local_media_path disable_mm_preprocessor_cache enable_mm_embeds "
        "interleave_mm_strings io_processor_plugin language_model_only media_io_kwargs mm_encoder_attn_backend "
        "mm_encoder_only mm_encoder_tp_mode mm_processor_cache_gb mm_processor_cache_type mm_processor_kwargs "
        "mm_shm_cache_max_object_size_mb skip_mm_profiling video_pruning_rate",
        "grammars are compiled by xgrammar": "guided_decoding_disable_additional_properties "
        "guided_decoding_disable_any_whitespace guided_decoding_disable_fallback structured_outputs_config",
        "it is for vLLM (option.rolling_batch=vllm)": "additional_config "
        "all2all_backend async_scheduling attention_backend attention_config code_revision "
        "compilation_config convert cp_kv_cache_interleave_size cuda_graph_sizes data_parallel_address "
        "data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb data_parallel_rank "
        "data_parallel_rpc_port data_parallel_size data_parallel_size_local data_parallel_start_rank "
        "dbo_decode_token_threshold dbo_prefill_token_threshold dcp_kv_cache_interleave_size "
        "decode_context_parallel_size default_mm_loras disable_async_output_proc disable_cascade_attn "
        "disable_chunked_mm_input disable_hybrid_kv_cache_manager disable_logprobs_during_spec_decoding "
        "disable_nccl_for_dp_synchronization disable_sliding_window ec_transfer_config enable_dbo enable_eplb "
        "enable_expert_parallel enable_lora_bias enable_multimodal_encoder_data_parallel enable_prompt_adapter "
        "enable_prompt_embeds enable_sleep_mode enable_tower_connector_lora eplb_config eplb_log_balancedness "
        "eplb_step_interval eplb_window_size expert_placement_strategy kernel_config kv_events_config "
        "kv_offloading_backend kv_offloading_size kv_sharing_fast_prefill logits_processor_pattern "
        "logits_processors logprobs_mode long_prefill_token_threshold mamba_block_size mamba_cache_dtype "
        "mamba_cache_mode mamba_ssm_cache_dtype master_addr master_port max_logprobs max_long_partial_prefills "
        "max_num_partial_prefills max_prompt_adapter_token max_prompt_adapters multi_step_stream_outputs nnodes "
        "node_rank num_gpu_blocks_override num_redundant_experts offload_backend offload_group_size "
        "offload_num_in_group offload_params offload_prefetch_step optimization_level override_attention_dtype "
        "override_neuron_config override_pooler_config pooler_config prefill_context_parallel_size "
        "prefix_caching_hash_algo profiler_config qlora_adapter_name_or_path reasoning_parser_plugin "
        "return_tokens_as_token_ids runner scheduler_cls scheduling_policy stream_interval "
        "tokenizer_pool_extra_config tokenizer_pool_size tokenizer_pool_type tool_parser_plugin ubatch_size "
        "weight_transfer_config worker_cls worker_extension_cls",
        "the implementation of attention is chosen for the device": "attention_layout disable_flash_attn "
        "use_fp8_context_fmha",
        "it is for Neuron devices": "collectives_layout compiled_graph_path context_length_estimate "
        "draft_model_compiled_path enable_mixed_precision_accumulation enable_saturate_infinity fuse_qkv "
        "group_query_attention load_split_model model_loader neuron_optimize_level on_device_embedding "
        "rolling_batch_strategy shard_over_sequence unroll use_stable_diffusion",
        "no built-in handler makes images": "height num_images_per_prompt width",
        "TensorRT-LLM builds its engines with it": "awq_block_size awq_calib_size awq_format baichuan_model_version "
        "calib_batch_size calib_size chatglm_model_version enable_trt_overlap gpt_model_version load_by_shard "
        "logits_dtype max_beam_width multi_block_mode multi_query_mode num_checkpoint_workers num_engine_workers "
        "output_dir q_format rotary_base rotary_dim rotary_scaling_factor rotary_scaling_type trtllm_checkpoint_path "
        "use_fused_mlp",
        "each request sets its own sampling and length": "decoding_strategy max_new_tokens seed stop_sequence",
        "the batch is formed anew at every step": "max_sparsity max_splits rolling_batch_type waiting_steps",
        "answers have LMI's shapes": "bedrock_compat",
        "it is for DJL's Java engines": "cpuArenaAllocator customOpLibrary disablePerSessionThreads executionMode "
        "extraFiles hasParameter interOpNumThreads intraOpNumThreads mapLocation memoryPatternOptimization modelName "
        "optLevel ortDevice trainParam",
        "it is a decorator in model.py": "input_formatter",
        "load_on_devices sets the devices of workers": "device_id",
        "sessions are kept in option.sessions_path only": "sessions_s3url",
    }
)

#: Top-level keys of serving.properties -> why they have no effect.
SERVING_WITHOUT_EFFECT: Final[Mapping[str, str]] = _by_name(
    {
        "it is for DJL's Java engines": "application blockFactory centerCrop includeTokenTypes padding "
        "resize toTensor translator translatorFactory truncation",
        "memory is not counted before a model is loaded": "gpu.required_memory_mb required_memory_mb "
        "reserved_memory_mb gpu.reserved_memory_mb",
        "metrics are at /metrics": "log_model_metric log_request_metric metrics_aggregation",
        "the server starts the processes of an engine itself": "parallel_loading",
    }
)

#: Keys of config.properties, and SERVING_<KEY>, of DJL's, and options of vLLM's server -> why they have no effect.
SERVER_WITHOUT_EFFECT: Final[Mapping[str, str]] = _by_name(
    {
        "a server that can load none of its models ends anyway, and workers that end are started again": "fail_fast",
        "errors have the codes of each API": "bad_request_http_code server_error_http_code timeout_http_code "
        "wlm_error_http_code",
        "answers to asynchronous requests are held in memory (memory_cache_size)": "cache_batch cache_multitenant "
        "ddb_cache ddb_table_name s3_cache s3_cache_autocreate s3_cache_bucket s3_cache_key_prefix",
        "certificate_file and private_key_file are PEM files, not a Java keystore (openssl pkcs12 -nodes -in KEYSTORE "
        "-out PAIR.pem makes a certificate_file of one)": "keystore keystore_pass keystore_type",
        "option.predict_timeout is how long each piece of a stream may take": "chunked_read_timeout",
        "a server is one machine's": "cluster_address",
        "/ping tells models that failed and workers that are missing, and no rates of errors": "error_rate_any "
        "error_rate_model error_rate_server error_rate_wlm",
        "it is about DJL's own HTTP server": "features netty_client_threads number_of_netty_threads use_native_io",
        "it is for plug-ins in Java": "plugin_folder",
        "metrics are at /metrics": "prometheus",
        "memory is not counted before a model is loaded": "reserved_memory_mb",
        "it is about vLLM's own HTTP server": "api_server_count data_parallel_supervisor_port "
        "disable_access_log_for_endpoints disable_frontend_multiprocessing disable_uvicorn_access_log "
        "dp_supervisor_probe_failure_threshold dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s "
        "enable_flash_late_interaction enable_server_load_tracking h11_max_header_count "
        "h11_max_incomplete_event_size headless middleware root_path tokens_only uvicorn_log_level",
        "--log-level and --log-format say what is logged": "enable_log_deltas enable_log_outputs "
        "enable_per_request_metrics log_config_file log_error_stack",
        "every answer has it (request_id_header_key)": "enable_request_id_headers",
        "pages of other origins send keys as headers (cors_allowed_headers), not cookies": "allow_credentials",
        "/docs and /openapi.json are always there, and need nothing from elsewhere": "disable_fastapi_docs "
        "enable_offline_docs",
        "certificates that are renewed are noticed": "enable_ssl_refresh",
        "client_certificates says whether clients need one": "ssl_cert_reqs",
        "connections have the ciphers that Python's ssl module chooses": "ssl_ciphers",
        "requests say it themselves (chat_template_kwargs, tools, stream_options)": "default_chat_template_kwargs "
        "enable_force_include_usage exclude_tools_when_tool_choice_none trust_request_chat_template",
        "the API has no such route or field here": "cohere_format cohere_is_reasoning_model "
        "enable_tokenizer_info_endpoint fingerprint_mode fingerprint_value tool_server",
    }
)
