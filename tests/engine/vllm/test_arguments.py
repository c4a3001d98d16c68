from __future__ import annotations

from typing import Any

import pytest

from djl_python.engine.vllm.arguments import (
    VllmOptions,
    VllmSettings,
    command_line,
    engine_arguments,
    lora_room,
    own_arguments,
)

KNOWN = frozenset({"enable_expert_parallel", "seed", "max_model_len", "enforce_eager"})
COMMON = {
    "model": "/model",
    "dtype": "auto",
    "tensor_parallel_size": "1",
    "pipeline_parallel_size": "1",
    "max_num_seqs": "32",
    "gpu_memory_utilization": "0.9",
    "max_logprobs": "-1",
}


def arguments(devices: int = 1, **settings: Any) -> dict[str, str]:
    return engine_arguments(VllmSettings(model_path="/model", **settings), KNOWN, devices)[0]


def test_options_that_are_not_set_are_left_to_vllm() -> None:
    assert arguments() == COMMON


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"dtype": "fp16"}, {"dtype": "float16"}),
        ({"max_model_len": 4096}, {"max_model_len": "4096"}),
        ({"max_batch_size": 8}, {"max_num_seqs": "8"}),
        ({"trust_remote_code": True}, {"trust_remote_code": "true"}),
        ({"tensor_parallel_degree": 2}, {"tensor_parallel_size": "2"}),
        ({"tensor_parallel_degree": 0}, {"tensor_parallel_size": "4"}),
        ({"gpu_memory_utilization": 0.8, "workers": 2}, {"gpu_memory_utilization": "0.4"}),
        ({"pipeline_parallel_degree": 2}, {"pipeline_parallel_size": "2"}),
        # The default of everybody's engine is for CPUs.
        (
            {"max_prefill_tokens": 4096, "properties": {"max_rolling_batch_prefill_tokens": "4096"}},
            {"max_num_batched_tokens": "4096"},
        ),
        ({"own": {"kv_cache_dtype": "fp8"}}, {"kv_cache_dtype": "fp8"}),
        (
            {"properties": {"enable_expert_parallel": "true", "seed": "3"}},
            {"enable_expert_parallel": "true", "seed": "3"},
        ),
    ],
)
def test_settings_under_vllms_names(settings: dict[str, Any], expected: dict[str, str]) -> None:
    assert arguments(devices=4, **settings) == COMMON | expected


def test_options_that_vllm_does_not_have_are_reported() -> None:
    settings = VllmSettings(
        model_path="/model", properties={"depth": "3", "seed": "1", "minWorkers": "2", "dtype": "fp16"}
    )
    assert engine_arguments(settings, KNOWN, 1)[1] == ["depth"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (VllmOptions(), {}),
        (VllmOptions(quantize="awq", cpu_offload_gb=4), {"quantization": "awq", "cpu_offload_gb": "4"}),
        (VllmOptions(enforce_eager=False, load_format="dummy"), {"enforce_eager": "false", "load_format": "dummy"}),
        (
            VllmOptions(speculative_draft_model="/draft", speculative_length=3),
            {"speculative_config": '{"model": "/draft", "num_speculative_tokens": 3}'},
        ),
    ],
)
def test_lmis_options(options: VllmOptions, expected: dict[str, str]) -> None:
    assert own_arguments(options) == expected


def test_a_switch_has_no_value() -> None:
    flags = frozenset({"enforce_eager", "async_scheduling"})
    given = {"enforce_eager": "True", "async_scheduling": "false", "seed": "3", "enable_lora": "true"}
    assert command_line(given, flags) == ["--enforce-eager", "--no-async-scheduling", "--seed=3", "--enable-lora=true"]


def test_adapters_are_engine_arguments_but_for_where_they_are() -> None:
    options = VllmOptions(
        enable_lora=True, max_lora_rank=32, adapters="loras", lora_modules="a=b", lora_dtype="float16"
    )
    assert own_arguments(options) == {
        "enable_lora": "true",
        "max_loras": "4",
        "max_lora_rank": "32",
        "lora_dtype": "float16",
    }


@pytest.mark.parametrize(
    ("ranks", "cpu", "expected"),
    [
        ([], False, {}),
        ([4, 20], False, {"max_lora_rank": "32"}),
        ([8], True, {"max_lora_rank": "8", "max_loras": "6"}),  # two places stay free
        ([8] * 7, True, {"max_lora_rank": "8", "max_loras": "9"}),
    ],
)
def test_room_for_adapters(ranks: list[int], cpu: bool, expected: dict[str, str]) -> None:
    assert lora_room({"max_loras": "4"}, ranks, cpu=cpu) == expected


def test_adapters_in_the_hosts_memory_are_no_fewer_than_places() -> None:
    made = lora_room({"max_loras": "4", "max_cpu_loras": "5"}, [], cpu=True)
    assert made == {"max_loras": "6", "max_cpu_loras": "6"}


def test_options_that_vllm_no_longer_has_are_not_passed_on() -> None:
    settings = VllmSettings(model_path="/model", properties={"lora_extra_vocab_size": "256"})
    assert engine_arguments(settings, KNOWN, 1) == (COMMON, [])
