"""The adapter that a request names, in the APIs that have one field for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from djl_python.core.errors import ParameterError
from djl_python.dialects import dialect
from tests.dialects.exchange import inputs, model

ADAPTED = msgspec.structs.replace(model(), adapters={"tom": "/tom"})


def adapter(api: str, operation: str, name: Any) -> str:
    body = {"inputs": "Hi.", "parameters": {"adapter_id": name}}
    (request,) = dialect(api).parse(inputs(operation, body, api), ADAPTED).requests
    return request.adapter


@pytest.mark.parametrize(
    ("api", "operation"), [("tgi", "generate"), ("tgi", "generate_stream"), ("mindie", "generate")]
)
def test_it_reaches_the_engine(api: str, operation: str) -> None:
    assert adapter(api, operation, "tom") == "tom"
    assert adapter(api, operation, None) == ""
    with pytest.raises(ParameterError, match="adapter_id: there is no adapter ann; expected one of tom"):
        adapter(api, operation, "ann")


def test_mindies_name_of_the_base_model() -> None:
    assert adapter("mindie", "generate", "None") == ""
