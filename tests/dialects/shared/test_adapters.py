"""The adapter that a request names, in the APIs that have one field for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from djl_python.core.errors import ParameterError
from djl_python.dialects import dialect
from djl_python.dialects.shared.adapters import adapter_named
from tests.dialects.exchange import inputs, model

ADAPTED = msgspec.structs.replace(model(), adapters={"tom": "/tom"})


def adapter(api: str, operation: str, name: Any) -> str:
    body = {"inputs": "Hi.", "parameters": {"adapter_id": name}}
    (request,) = dialect(api).parse(inputs(operation, body, api), ADAPTED).requests
    return request.adapter


@pytest.mark.parametrize(
    ("api", "operation"), [("tgi", "generate"), ("tgi", "generate_stream"), ("mindie", "generate")]
)
def test_a_requests_adapter_reaches_the_engine(api: str, operation: str) -> None:
    assert adapter(api, operation, "tom") == "tom"
    assert adapter(api, operation, None) == ""
    with pytest.raises(ParameterError, match="adapter_id: there is no adapter ann; expected one of tom"):
        adapter(api, operation, "ann")


def test_mindies_name_of_the_base_model() -> None:
    assert adapter("mindie", "generate", "None") == ""


def test_an_error_about_adapters_does_not_ask_for_an_option_that_is_set() -> None:
    plain = model()
    lora = msgspec.structs.replace(plain, properties={**plain.properties, "enable_lora": "true"})
    for config, told in (
        (plain, "option.enable_lora=true serves them"),
        (lora, "its engine, option.rolling_batch=auto, serves none (auto and vllm do)"),
        (msgspec.structs.replace(lora, engine_options={"enable_lora": True}), "none has been registered"),
    ):
        with pytest.raises(ParameterError) as raised:
            adapter_named("tom", config, "adapters")
        assert raised.value.message.startswith(f"adapters: this model has no adapters; {told}")
