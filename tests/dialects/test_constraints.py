"""What restricts the text, under any server's name, is taken or refused, in every dialect: never ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from djl_python.core.errors import ParameterError
from djl_python.dialects import dialect
from tests.dialects.exchange import inputs, model

NAMES: Final = (
    *("response_format", "guided_json", "guided_regex", "guided_choice", "structured_outputs"),
    *("json_schema", "regex", "guided_grammar", "allowed_token_ids", "ebnf", "structural_tag", "grammar"),
)
TENSOR: Final = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}
#: place -> dialect, operation, and the body with a field in that place.
PLACES: Final[dict[str, tuple[str, str, Callable[[dict[str, Any]], dict[str, Any]]]]] = {
    "TGI": ("tgi", "generate", lambda given: {"inputs": "a", "parameters": given}),
    "TGI, beside parameters": ("tgi", "generate", lambda given: {"inputs": "a", **given}),
    "MindIE": ("mindie", "generate_stream", lambda given: {"inputs": "a", "parameters": given}),
    "MindIE, beside parameters": ("mindie", "generate_stream", lambda given: {"inputs": "a", **given}),
    "Triton": ("triton", "generate", lambda given: {"text_input": "a", "parameters": given}),
    "Triton, beside parameters": ("triton", "generate", lambda given: {"text_input": "a", **given}),
    "Triton infer": ("triton", "infer", lambda given: {"inputs": [TENSOR], "parameters": given}),
    "LMI, beside parameters": ("lmi", "predict", lambda given: {"inputs": "a", **given}),
}


@pytest.mark.parametrize(
    ("place", "name"),
    [(place, name) for place in PLACES for name in NAMES if (place, name) != ("TGI", "grammar")],
)
def test_a_constraint_that_a_dialect_does_not_have_is_refused(place: str, name: str) -> None:
    api, operation, body = PLACES[place]
    with pytest.raises(ParameterError, match="not served here, expected") as caught:
        dialect(api).parse(inputs(operation, body({name: "a"}), api), model())
    assert (caught.value.field or "").removeprefix("parameters.") == name
