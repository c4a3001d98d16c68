"""Text becomes typed fields, or a precise sentence."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.config.binding import bind, settings_of
from djl_python.config.properties_file import PropertyEntry
from djl_python.config.settings.options import Options
from djl_python.config.settings.serving import ServingSettings


def value_of(key: str, text: str) -> Any:
    problems: list[str] = []
    struct, prefix = (Options, "option.") if key.startswith("option.") else (ServingSettings, "")
    values = bind(struct, {key: PropertyEntry(text, "here")}, prefix, problems, [])
    assert not problems
    (value,) = values.values()
    return value


def problem_of(key: str, text: str) -> str:
    problems: list[str] = []
    struct, prefix = (Options, "option.") if key.startswith("option.") else (ServingSettings, "")
    assert bind(struct, {key: PropertyEntry(text, "here")}, prefix, problems, []) == {}
    (problem,) = problems
    return problem


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("batch_size", " 8 ", 8),
        ("option.trust_remote_code", "TRUE", True),
        ("option.trust_remote_code", "False", False),
        ("option.predict_timeout", "0.5", 0.5),
        ("option.predict_timeout", ".5", 0.5),
        ("option.predict_timeout", " +.25 ", 0.25),
        ("option.predict_timeout", "60", 60.0),
        ("option.tensor_parallel_degree", "2", 2),
        ("option.tensor_parallel_degree", "max", "max"),
        ("option.dtype", "BF16", "bf16"),
        ("option.dtype", "float32", "fp32"),
        ("option.dtype", "bfloat16", "bf16"),
        ("option.rolling_batch", "scheduler", "builtin"),
        ("option.rolling_batch", "my.module:Batch", "my.module:Batch"),
        ("option.device", "cuda:1", "cuda:1"),
        ("option.model_id", "Owner/Name", "Owner/Name"),
        ("option.tgi_dialect", "MindIE", "mindie"),
        ("option.gpu_memory_utilization", "1", 1.0),
        ("option.env", "A=1,B=x=y, C=", "A=1,B=x=y, C="),
        ("option.max_images", "3", 3),
        ("option.max_images", '{"image": 4}', 4),
        ("option.max_images", "{'video': 1, 'image': 4}", 4),
        ("option.max_images", "image=4,video=2", 4),
        ("load_on_devices", "gpu0;gpu1", "gpu0;gpu1"),
    ],
)
def test_values(key: str, text: str, value: object) -> None:
    assert value_of(key, text) == value


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("batch_size", "lots", "an integer >= 1"),
        ("batch_size", "0", "an integer >= 1"),
        ("batch_size", "1.5", "an integer >= 1"),
        ("minWorkers", "-1", "an integer >= 1"),
        ("option.predict_timeout", "0", "a number > 0"),
        ("option.predict_timeout", "nan", "a number > 0"),
        ("option.predict_timeout", "inf", "a number > 0"),
        ("option.gpu_memory_utilization", "1.1", "a number > 0 and <= 1"),
        ("option.trust_remote_code", "yes", "true or false"),
        ("option.dtype", "fp8", "one of auto, bf16, fp16, fp32"),
        ("option.tensor_parallel_degree", "all", "an integer >= 1, or max"),
        ("option.tensor_parallel_degree", "0", "an integer >= 1, or max"),
        ("option.device", "tpu", "auto, cpu, cuda or cuda:N"),
        ("option.throttle_error_http_code", "200", "an integer >= 400 and <= 599"),
        ("option.max_images", '{"image": 0}', "an integer >= 1"),
        ("option.max_images", '{"video": 1}', "an integer >= 1"),
        ("option.env", "no pairs", "K=V pairs separated by commas"),
        ("load_on_devices", "all", "* or a list such as gpu0;gpu1"),
    ],
)
def test_problems(key: str, text: str, expected: str) -> None:
    assert problem_of(key, text) == f"here: {key}={text}: expected {expected}"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("option.dtype", '"bf16"', "bf16"),
        ("option.max_model_len", "'4096'", 4096),
        ("option.model_id", ' "owner/name" ', "owner/name"),
        ("option.max_images", """'{"image": 4}'""", 4),
    ],
)
def test_quotes_that_a_file_of_variables_leaves_around_a_value(key: str, text: str, value: object) -> None:
    problems, warnings = [], []  # type: list[str], list[str]
    assert [*bind(Options, {key: PropertyEntry(text, "here")}, "option.", problems, warnings).values()] == [value]
    assert problems == []
    assert warnings == [f"here: {key}: the quotes around its value are not taken as part of it"]


@pytest.mark.parametrize("text", ["fp16   # half the memory", "fp16\t! half the memory"])
def test_a_comment_behind_a_value_is_part_of_it_as_in_java(text: str) -> None:
    assert problem_of("option.dtype", text).endswith("auto, bf16, fp16, fp32; a comment has a line of its own")


def test_bytes_that_are_no_text() -> None:
    """As Python reads a variable that is not UTF-8: no other process could be told."""
    assert problem_of("option.model_id", "/models/\udcff").endswith(": expected UTF-8 text")


def test_empty_is_unset() -> None:
    problems: list[str] = []
    assert bind(ServingSettings, {"batch_size": PropertyEntry(" ", "here")}, "", problems, []) == {}
    assert problems == []


def test_every_default_is_a_value_of_its_own_setting() -> None:
    """A default that is written out reads as itself."""
    for struct, prefix in ((ServingSettings, ""), (Options, "option.")):
        for setting in settings_of(struct, prefix):
            if setting.default not in (None, ""):
                assert setting.parse(str(setting.default)) == setting.default, setting.key


def test_of_a_few_values_the_nearest_is_suggested() -> None:
    assert problem_of("option.tgi_dialect", "mindle").endswith(": expected one of mindie, tgi; did you mean mindie?")
    assert problem_of("option.tgi_dialect", "other").endswith(": expected one of mindie, tgi")
