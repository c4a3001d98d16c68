"""DJL's classes of settings, made of texts as serving.properties has them."""

from __future__ import annotations

from typing import ClassVar

import pytest

from djl_python.properties_manager import hf_properties
from djl_python.properties_manager.declared import Declared
from djl_python.properties_manager.hf_properties import HFQuantizeMethods, HuggingFaceProperties
from djl_python.properties_manager.lmi_dist_rb_properties import LmiDistRbProperties
from djl_python.properties_manager.properties import (
    Properties,
    RollingBatchEnum,
    StreamingEnum,
    is_rolling_batch_enabled,
    is_streaming_enabled,
)
from djl_python.properties_manager.scheduler_rb_properties import SchedulerRbProperties
from djl_python.properties_manager.trt_properties import TensorRtLlmProperties
from djl_python.properties_manager.vllm_rb_properties import VllmRbProperties


def test_texts_become_values() -> None:
    configs = Properties(
        model_id="m", rolling_batch="AUTO", tensor_parallel_degree="2", trust_remote_code="True", of_mine="x"
    )
    assert configs.model_id_or_path == "m"
    assert configs.rolling_batch is RollingBatchEnum.auto
    assert (configs.tensor_parallel_degree, configs.trust_remote_code) == (2, True)
    assert configs.enable_streaming is StreamingEnum.false
    assert is_rolling_batch_enabled(configs.rolling_batch)
    assert not is_streaming_enabled(configs.enable_streaming)
    assert Properties(model_dir="/d").model_id_or_path == "/d"


def test_wrong_values_say_which() -> None:
    for given, message in (
        ({"batch_size": "few"}, "batch_size='few'"),
        ({"enable_streaming": "true", "batch_size": "2"}, "a dynamic batch .* cannot be streamed"),
        ({"model_id": None}, "neither model_id nor model_dir"),
    ):
        with pytest.raises(ValueError, match=message):
            Properties(**{"model_id": "m", **given})


def test_arguments_of_from_pretrained() -> None:
    configs = HuggingFaceProperties(model_id="m", dtype="fp16", revision="r", device_id="1", device="auto")
    assert configs.kwargs == {"trust_remote_code": False, "revision": "r", "dtype": "float16"}
    assert configs.device == "cuda:1"
    spread = HuggingFaceProperties(model_id="m", device_map="auto", quantize="bitsandbytes4")
    assert (spread.device, spread.kwargs["device_map"], spread.kwargs["load_in_4bit"]) == (None, "auto", True)
    assert HuggingFaceProperties(model_id="m", rolling_batch="neuronx").rolling_batch is RollingBatchEnum.auto
    assert HuggingFaceProperties(model_id="m").kwargs == {"trust_remote_code": False}  # not another instance's
    with pytest.raises(ValueError, match="Invalid data type: fp7"):
        HuggingFaceProperties(model_id="m", dtype="fp7")


def test_quantization_with_bitsandbytes_needs_a_device_map(caplog: pytest.LogCaptureFixture) -> None:
    wanted = {"model_id": "m", "device_map": "auto", "load_in_8bit": "true", "low_cpu_mem_usage": "true"}
    configs = HuggingFaceProperties(**wanted)
    assert configs.quantize is HFQuantizeMethods.bitsandbytes8
    assert (configs.kwargs["load_in_8bit"], configs.kwargs["low_cpu_mem_usage"]) == (True, True)
    for wrong in ({"load_in_8bit": "true"}, {"quantize": "bitsandbytes4"}, {"quantize": "bitsandbytes16"}):
        with pytest.raises(ValueError, match=r"device_map should be set|quantize='bitsandbytes16'"):
            HuggingFaceProperties(model_id="m", **wrong)
    configs = HuggingFaceProperties(model_id="m", quantize="bitsandbytes8", rolling_batch="lmi-dist")
    assert configs.quantize is HFQuantizeMethods.bitsandbytes
    assert "load_in_8bit" not in configs.kwargs
    assert "quantize=bitsandbytes8 has no effect without device_map" in caplog.text


def test_a_model_that_all_gpus_share_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_properties, "gpu_count", lambda: 2)
    shared = HuggingFaceProperties(model_id="m", tensor_parallel_degree="2", device_id="0")
    assert (shared.device, shared.kwargs["device_map"]) == (None, "auto")
    alone = HuggingFaceProperties(model_id="m", tensor_parallel_degree="1", device_id="1")
    assert (alone.device, "device_map" in alone.kwargs) == ("cuda:1", False)


@pytest.mark.parametrize("kind", [VllmRbProperties, LmiDistRbProperties, TensorRtLlmProperties, SchedulerRbProperties])
def test_settings_of_other_engines(kind: type[Properties]) -> None:
    configs = kind(model_id="m", max_rolling_batch_size="8", tensor_parallel_degree="4", rolling_batch="vllm")
    assert (configs.max_rolling_batch_size, configs.tensor_parallel_degree) == (8, 4)


def test_a_class_of_ones_own() -> None:
    class Mine(Properties):
        mood: str = "good"
        tags: list[str] = []  # noqa: RUF012  (a field)
        known: ClassVar[int] = 1

    one, two = Mine(model_id="m", mood="bad"), Mine(model_id="m")
    one.tags.append("x")
    assert (one.mood, two.tags) == ("bad", [])
    assert "known" not in one.model_dump()
    assert "mood='bad'" in repr(one)


def test_dumps() -> None:
    class Pair(Declared):
        aliases: ClassVar = {"a": "alpha"}
        hidden: ClassVar = ("c",)
        a: int | None = None
        b: int = 2
        c: int = 3

    assert Pair().model_dump() == {"a": None, "b": 2}
    assert Pair(a=1).model_dump(by_alias=True, exclude=("b",)) == {"alpha": 1}
    assert Pair().model_dump(exclude_none=True) == {"b": 2}
