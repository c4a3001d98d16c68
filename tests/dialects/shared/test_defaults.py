"""What is said of requests that leave fields open, against what the same fields mean where they are given."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from djl_python.config import Checkpoint
from djl_python.core.types import GenerateRequest
from djl_python.dialects.openai.dialect import OpenAIDialect
from djl_python.dialects.shared.chat.request import ChatRequest
from djl_python.dialects.shared.completion import CompletionRequest
from djl_python.dialects.shared.defaults import CHAT, COMPLETION, request_defaults
from tests.dialects.exchange import inputs, model

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi."}]},
    COMPLETION: {"prompt": "Hi."},
}
TYPES = {CHAT: ChatRequest, COMPLETION: CompletionRequest}
DRAWN = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}
CONFIGS: list[dict[str, Any]] = [
    {},
    DRAWN,
    {"do_sample": False},
    {"do_sample": False, **DRAWN},
    {"do_sample": True, **DRAWN},
]


def parsed(form: str, body: dict[str, Any], config: dict[str, Any]) -> GenerateRequest:
    (request,) = (
        OpenAIDialect().parse(inputs(form, BODIES[form] | body), model(Checkpoint(generation_config=config))).requests
    )
    return msgspec.structs.replace(
        request, must_fit=False, ignored=(), sampling=msgspec.structs.replace(request.sampling, seed=0)
    )


@pytest.mark.parametrize("form", BODIES)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_to_send_a_default_changes_nothing(form: str, config: dict[str, Any]) -> None:
    open_request = parsed(form, {}, config)
    defaults = request_defaults(model(Checkpoint(generation_config=config)))[form]
    assert set(defaults) <= set(TYPES[form].__struct_fields__)
    for name, value in defaults.items():
        if isinstance(value, str):
            continue
        assert parsed(form, {name: value}, config) == open_request, name


def test_defaults_are_those_of_the_checkpoint() -> None:
    chat = request_defaults(model(Checkpoint(generation_config={"do_sample": True, **DRAWN})))[CHAT]
    assert {name: chat[name] for name in DRAWN} == DRAWN
    assert (chat["max_tokens"], chat["seed"], chat["tool_choice"]) == ("all that fit", "random", "auto")
    greedy = request_defaults(model(Checkpoint(generation_config={"do_sample": False})))[COMPLETION]
    assert (greedy["temperature"], greedy["max_tokens"]) == (0, 32) and "seed" not in greedy
