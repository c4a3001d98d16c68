from __future__ import annotations

from typing import Any

import pytest

from djl_python.engine.trtllm.arguments import (
    WITHOUT_EFFECT,
    TrtllmOptions,
    TrtllmSettings,
    end_ids,
    llm_arguments,
    stated_context,
    vocabulary_size,
)

KNOWN = frozenset({"attn_backend", "stream_interval", "speculative_config", "dtype", "kv_cache_config"})
OF_THE_CACHE = frozenset({"max_tokens", "host_cache_size", "dtype", "tokens_per_block"})
COMMON = {
    "model": "/model",
    "dtype": "auto",
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "trust_remote_code": False,
    "max_batch_size": 32,
    "guided_decoding_backend": "xgrammar",
    "kv_cache_config": {},
}


def arguments(**settings: Any) -> tuple[dict[str, Any], list[str]]:
    return llm_arguments(TrtllmSettings(model_path="/model", **settings), KNOWN, OF_THE_CACHE, 4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"dtype": "fp16", "trust_remote_code": True}, {"dtype": "float16", "trust_remote_code": True}),
        ({"tensor_parallel_degree": 2, "pipeline_parallel_degree": 3}, {"pipeline_parallel_size": 3}),
        ({"tensor_parallel_degree": 0}, {"tensor_parallel_size": 4}),
        ({"max_batch_size": 8, "max_model_len": 4096}, {"max_batch_size": 8, "max_seq_len": 4096}),
        # The default of everybody's engine is for CPUs.
        (
            {"max_prefill_tokens": 4096, "properties": {"max_rolling_batch_prefill_tokens": "4096"}},
            {"max_num_tokens": 4096},
        ),
        ({"workers": 2}, {"kv_cache_config": {"free_gpu_memory_fraction": 0.45}}),
        (
            {"properties": {"attn_backend": "FLASHINFER", "speculative_config": '{"decoding_type": "NGram"}'}},
            {"attn_backend": "FLASHINFER", "speculative_config": {"decoding_type": "NGram"}},
        ),
        # LMI's users set the cache's fields as options.
        (
            {"properties": {"max_tokens": "4096", "host_cache_size": "1000"}},
            {"kv_cache_config": {"max_tokens": "4096", "host_cache_size": "1000"}},
        ),
    ],
)
def test_settings_under_its_names(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    if settings.get("tensor_parallel_degree") == 2:
        expected = {"tensor_parallel_size": 2, **expected}
    assert arguments(**settings) == (COMMON | expected, [])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_output_len": 2048}, {"max_seq_len": 2048}),
        ({"max_num_sequences": 5}, {"max_batch_size": 5}),
        ({"tokens_per_block": 64}, {"kv_cache_config": {"tokens_per_block": 64}}),
        (
            {"batch_scheduler_policy": "max_utilization"},
            {"scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}},
        ),
        ({"kv_cache_free_gpu_mem_fraction": 0.8}, {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}}),
        ({"enable_kv_cache_reuse": False}, {"kv_cache_config": {"enable_block_reuse": False}}),
        ({"enable_chunked_context": True}, {"enable_chunked_prefill": True}),
        ({"enable_trt_overlap": True}, {"disable_overlap_scheduler": False}),
        ({"kv_cache_dtype": "fp8"}, {"kv_cache_config": {"dtype": "fp8"}}),
        ({"guided_decoding_backend": "llguidance"}, {"guided_decoding_backend": "llguidance"}),
        ({"moe_backend": "TRTLLM"}, {"moe_config": {"backend": "TRTLLM"}}),
        ({"use_cuda_graph": False}, {"cuda_graph_config": None}),
        ({"use_cuda_graph": True, "quantize": "awq"}, {}),
    ],
)
def test_lmis_options(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert arguments(own=TrtllmOptions(**options)) == (COMMON | expected, [])


def test_the_context_of_everybodys_option_is_the_stronger_one() -> None:
    given, _ = arguments(own=TrtllmOptions(max_output_len=2048), max_model_len=4096)
    assert given["max_seq_len"] == 4096


def test_unknown_and_former_options_are_not_passed_on() -> None:
    properties = {"depth": "3", "stream_interval": "2", "gpt_model_version": "starcoder", "minWorkers": "1"}
    given, unknown = arguments(properties=properties)
    assert (given, unknown) == (COMMON | {"stream_interval": "2"}, ["depth"])
    assert "compiles nothing" in WITHOUT_EFFECT["gpt_model_version"]


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 2}, {}, (2,)),
        ({"eos_token_id": 2}, {"eos_token_id": [2, 7]}, (2, 7)),
        ({"text_config": {"eos_token_id": 5}}, {}, (5,)),
        ({}, {}, ()),
    ],
)
def test_end_tokens_come_from_the_generation_config_and_the_config(
    config: dict[str, Any], generation: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert end_ids(config, generation) == expected


def test_sizes_of_a_model() -> None:
    text = {"vocab_size": 100, "max_position_embeddings": 2048}
    for config in (text, {"text_config": text, "vocab_size": 5}):
        assert (vocabulary_size(config), stated_context(config)) == (100, 2048)
    assert (vocabulary_size({}), stated_context({})) == (None, None)
