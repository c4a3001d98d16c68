"""Options of `vllm serve` that are not simply a setting's name with a value. `command_line` uses them.

Runs in the front end. Source: vLLM's `EngineArgs` and `FrontendArgs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final


def _listed(text: str) -> str:
    """A JSON array of texts as this server has lists: separated by commas."""
    try:
        values = json.loads(text)
    except ValueError:
        return text
    return ",".join(map(str, values)) if isinstance(values, list) else text


def _same(text: str) -> str:
    return text


def _socket(text: str) -> str:
    return f"unix:{text}"


#: Options, underscores in them -> the server's setting, and how its value is made of vLLM's.
RENAMED: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "allowed_headers": ("cors_allowed_headers", _listed),
    "allowed_methods": ("cors_allowed_methods", _listed),
    "allowed_origins": ("cors_allowed_origin", _listed),
    "ssl_ca_certs": ("client_ca_file", _same),
    "ssl_certfile": ("certificate_file", _same),
    "ssl_keyfile": ("private_key_file", _same),
    "uds": ("inference_address", _socket),
}
#: Short options -> the setting.
SHORT: Final[Mapping[str, str]] = {
    "-O": "optimization_level",
    "-ac": "attention_config",
    "-asc": "api_server_count",
    "-cc": "compilation_config",
    "-dcp": "decode_context_parallel_size",
    "-dp": "data_parallel_size",
    "-dpa": "data_parallel_address",
    "-dpb": "data_parallel_backend",
    "-dpe": "data_parallel_external_lb",
    "-dph": "data_parallel_hybrid_lb",
    "-dpl": "data_parallel_size_local",
    "-dpn": "data_parallel_rank",
    "-dpp": "data_parallel_rpc_port",
    "-dpr": "data_parallel_start_rank",
    "-ep": "enable_expert_parallel",
    "-n": "nnodes",
    "-pcp": "prefill_context_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-q": "quantization",
    "-r": "node_rank",
    "-sc": "speculative_config",
    "-spec-draft-tp": "speculative_draft_tensor_parallel_size",
    "-tp": "tensor_parallel_size",
}
#: An optimization level without a blank before it.
LEVEL: Final = re.compile(r"-O(\d)")
#: Options of several words -> what their further words look like; the value has commas between them.
SEVERAL: Final[Mapping[str, re.Pattern[str]]] = {
    "cuda_graph_sizes": re.compile(r"\d+"),
    "cudagraph_capture_sizes": re.compile(r"\d+"),
    "lora_modules": re.compile(r"[^=]+=.+"),
}
#: Options that are switched on or off and have no setting here.
SWITCHES: Final = frozenset(
    """
    aggregate_engine_logging allow_credentials async_scheduling calculate_kv_scales cohere_is_reasoning_model
    collect_detailed_traces cudagraph_metrics data_parallel_external_lb data_parallel_hybrid_lb
    disable_async_output_proc disable_cascade_attn disable_chunked_mm_input disable_custom_all_reduce
    disable_fastapi_docs disable_frontend_multiprocessing disable_hybrid_kv_cache_manager disable_log_requests
    disable_log_stats disable_logprobs_during_spec_decoding disable_mm_preprocessor_cache
    disable_nccl_for_dp_synchronization disable_sliding_window disable_uvicorn_access_log enable_auto_tool_choice
    enable_chunked_prefill enable_dbo enable_eplb enable_expert_parallel enable_flash_late_interaction
    enable_force_include_usage enable_layerwise_nvtx_tracing enable_log_deltas enable_log_outputs enable_log_requests
    enable_logging_iteration_details enable_lora enable_lora_bias enable_mfu_metrics enable_mm_embeds
    enable_multimodal_encoder_data_parallel enable_offline_docs enable_per_request_metrics enable_prefix_caching
    enable_prompt_adapter enable_prompt_embeds enable_prompt_tokens_details enable_request_id_headers
    enable_server_load_tracking enable_sleep_mode enable_ssl_refresh enable_tokenizer_info_endpoint
    enable_tower_connector_lora eplb_log_balancedness exclude_tools_when_tool_choice_none fully_sharded_loras
    guided_decoding_disable_additional_properties guided_decoding_disable_any_whitespace
    guided_decoding_disable_fallback headless interleave_mm_strings kv_cache_metrics kv_sharing_fast_prefill
    language_model_only log_error_stack mm_encoder_only multi_step_stream_outputs ray_workers_use_nsight
    return_tokens_as_token_ids skip_mm_profiling skip_tokenizer_init speculative_disable_mqa_scorer tokens_only
    trust_request_chat_template use_tqdm_on_load use_v2_block_manager worker_use_ray
    """.split()
)
