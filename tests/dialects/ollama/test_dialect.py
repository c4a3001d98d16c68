"""Ollama's chats and prompts: what a request becomes, and the lines and errors that answer it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from djl_python.config import Checkpoint, Options
from djl_python.core.engine_info import EngineInfo
from djl_python.core.errors import (
    ContextLengthError,
    ModelNotFoundError,
    OverloadedError,
    ParameterError,
    PayloadError,
    ServingError,
    WorkerDiedError,
)
from djl_python.core.model_files.model_card import ModelCard
from djl_python.core.text_tasks import FEATURE_EXTRACTION
from djl_python.core.types import Chat, Delta, FinishReason, Grammar, ImageSource
from djl_python.dialects.ollama.dialect import OllamaDialect
from djl_python.dialects.ollama.models import OllamaShown, shown
from djl_python.dialects.shared.base import Answer
from djl_python.dialects.shared.views import ModelStatus
from tests.dialects.exchange import called, ending, inputs, model, said, task_answer

API = OllamaDialect()
HI = [{"role": "user", "content": "Hi."}]
TAKES_IMAGES = Checkpoint(takes_images=True)
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def parsed(operation: str = "ollama_chat", checkpoint: Checkpoint | None = None, **body: Any) -> Any:
    asked = {"model": "served:latest", **({"messages": HI} if operation == "ollama_chat" else {}), **body}
    return API.parse(inputs(operation, asked, "ollama"), model(checkpoint))


def lines(formatter: Any, *deltas: Delta) -> list[dict[str, Any]]:
    data = b"".join(map(formatter.push, deltas)) + formatter.end()
    return [json.loads(line) for line in data.splitlines()]


def test_a_request_asks_for_what_its_options_say() -> None:
    options = {"num_predict": 7, "temperature": 0.5, "top_k": 3, "repeat_penalty": 1.5, "seed": 4, "stop": ["z"]}
    (request,) = parsed(options={**options, "num_ctx": 4096}).requests
    sampling = request.sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_k) == (7, 0.5, 3)
    assert (sampling.repetition_penalty, sampling.seed, request.text.stop_sequences) == (1.5, 4, ("z",))
    assert request.ignored == ("options.num_ctx",)


@pytest.mark.parametrize("limit", [None, -1, -2])
def test_an_answer_without_a_limit_ends_with_the_context(limit: int | None) -> None:
    (request,) = parsed(options={"num_predict": limit}).requests
    assert request.sampling.max_new_tokens > 1 << 30 and not request.must_fit


def test_messages_are_those_of_the_chat_template() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Bern"}}}
    (request,) = parsed(
        messages=[
            {"role": "system", "content": "Be short."},
            *HI,
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call]},
            {"role": "tool", "content": "Sun", "tool_name": "weather"},
        ],
        tools=[WEATHER],
        think="low",
    ).requests
    assert isinstance(request.prompt, Chat)
    made = {"name": "weather", "arguments": '{"city":"Bern"}'}
    assert request.prompt.messages == (
        {"role": "system", "content": "Be short."},
        *HI,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "", "type": "function", "function": made}],
        },
        {"role": "tool", "content": "Sun", "name": "weather"},
    )
    assert request.prompt.tool_use is not None
    assert request.prompt.variables == {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}
    assert set(request.prompt.variable_fields.values()) == {"think"}


def test_a_prompt_becomes_a_chat_unless_it_is_raw() -> None:
    (request,) = parsed("ollama_generate", prompt="Hi.", system="Be short.").requests
    assert isinstance(request.prompt, Chat)
    assert request.prompt.messages == ({"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi."})
    (raw,) = parsed("ollama_generate", prompt="Hi.", raw=True, system="Be short.").requests
    assert (raw.prompt, raw.add_special_tokens, raw.ignored) == ("Hi.", True, ("system",))


def test_images_keep_their_path() -> None:
    (request,) = parsed("ollama_generate", TAKES_IMAGES, prompt="See", images=["aGk="]).requests
    assert isinstance(request.prompt, Chat)
    assert request.prompt.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "See"}]
    assert request.prompt.images == (ImageSource("data:image/png;base64,aGk=", "images[0]"),)


def test_a_format_constrains_the_text() -> None:
    assert parsed(format="json").requests[0].sampling.grammar == Grammar("json_object", field="format")
    grammar = parsed(format={"type": "object", "properties": {}}).requests[0].sampling.grammar
    assert (grammar.kind, grammar.field) == ("json_schema", "format")
    assert parsed(format="").requests[0].sampling.grammar is None


@pytest.mark.parametrize(
    ("operation", "body", "field"),
    [
        ("ollama_chat", {"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ("ollama_chat", {"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images"),
        ("ollama_chat", {"options": {"num_predict": 0}}, "options.num_predict"),
        ("ollama_chat", {"options": {"temperature": -1}}, "options.temperature"),
        ("ollama_chat", {"options": {"seed": 1 << 70}}, "options.seed"),
        ("ollama_chat", {"format": 3}, "format"),
        ("ollama_generate", {"prompt": "a", "suffix": "b", "images": ["aGk="]}, "images"),
        ("ollama_generate", {"prompt": "a", "template": "b"}, "template"),
        ("ollama_generate", {"prompt": "a", "raw": True, "images": ["aGk="]}, "images"),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(operation: str, body: dict[str, Any], field: str) -> None:
    with pytest.raises((ParameterError, PayloadError)) as refused:
        parsed(operation, **body)
    error = refused.value
    assert isinstance(error, ParameterError | PayloadError)
    assert error.field == field and field in error.message


def test_a_suffix_asks_for_what_is_between_the_texts_in_the_checkpoints_tokens() -> None:
    infills = Checkpoint(infill_tokens=("<P>", "<S>", "<M>"))
    (request,) = parsed("ollama_generate", infills, prompt="def f(", suffix="return 1", system="x").requests
    assert request.prompt == "<P>def f(<S>return 1<M>" and request.ignored == ("system",)
    (request,) = parsed("ollama_generate", infills, suffix="return 1").requests
    assert request.prompt == "<P><S>return 1<M>"
    with pytest.raises(ParameterError, match="served:latest does not support insert"):
        parsed("ollama_generate", prompt="a", suffix="b")


ANSWER = (
    Delta(tokens=said("").tokens, reasoning="Hm."),
    said("I look."),
    called(0, "t1", "weather", '{"city":'),
    called(0, arguments='"Bern"}'),
    called(1, "t2", "time", ""),
    Delta(finish=ending(FinishReason.EOS)),
)
CALLS = [
    {"id": "t1", "function": {"name": "weather", "arguments": {"city": "Bern"}}},
    {"id": "t2", "function": {"name": "time", "arguments": {}}},
]


def test_a_stream_has_a_line_for_each_piece_and_calls_are_whole() -> None:
    formatter = parsed().formatter
    assert formatter.stream and formatter.headers["content-type"] == "application/x-ndjson"
    *pieces, last = lines(formatter, *ANSWER)
    assert [piece["message"] for piece in pieces] == [
        {"role": "assistant", "content": "", "thinking": "Hm."},
        {"role": "assistant", "content": "I look."},
        {"role": "assistant", "content": "", "tool_calls": CALLS[:1]},
        {"role": "assistant", "content": "", "tool_calls": CALLS[1:]},
    ]
    assert not any(piece["done"] for piece in pieces) and {piece["model"] for piece in pieces} == {"served:latest"}
    assert last["done"] and last["message"] == {"role": "assistant", "content": ""}
    assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("stop", 5, 3)
    assert last["total_duration"] >= last["eval_duration"] >= 0


def test_a_whole_answer_is_one_object() -> None:
    (whole,) = lines(parsed(stream=False).formatter, *ANSWER)
    message = {"role": "assistant", "content": "I look.", "thinking": "Hm.", "tool_calls": CALLS}
    assert (whole["message"], whole["done"]) == (message, True)
    (prompted,) = lines(parsed("ollama_generate", prompt="a", stream=False).formatter, said("b", end=ending()))
    assert prompted["response"] == "b"


def test_a_call_that_the_limit_cuts_off_is_left_out() -> None:
    end = ending(FinishReason.LENGTH)
    (whole,) = lines(parsed(stream=False).formatter, said("a"), called(0, "t", "weather", '{"city":', end))
    assert "tool_calls" not in whole["message"] and whole["done_reason"] == "length"


@pytest.mark.parametrize(("operation", "body"), [("ollama_chat", {"messages": []}), ("ollama_generate", {})])
def test_a_request_without_a_prompt_only_loads_the_model(operation: str, body: dict[str, Any]) -> None:
    made = parsed(operation, **body, stream=False)
    assert made.requests == ()
    (answer,) = lines(made.formatter)
    assert (answer["done"], answer["done_reason"]) == (True, "load")


@pytest.mark.parametrize(
    ("error", "status"),
    [(ParameterError("a: b", "a"), 400), (OverloadedError("a"), 503), (WorkerDiedError("a"), 500)],
)
def test_an_error_has_ollamas_shape(error: ServingError, status: int) -> None:
    answer = API.error(error)
    assert (answer.status, json.loads(answer.body)) == (status, {"error": error.message})
    assert parsed().formatter.error(error) == answer.body + b"\n"


def test_a_prompt_that_is_too_long_is_named_as_the_request_names_it() -> None:
    error = ContextLengthError(90, None, 64)
    assert "messages" in json.loads(API.error(error, operation="ollama_chat").body)["error"]


def test_embeddings_are_in_the_order_of_the_texts() -> None:
    answer = task_answer(API, FEATURE_EXTRACTION, "embed", {"model": "m", "input": ["a", "b"]})
    assert len(answer["embeddings"]) == 2 and answer["prompt_eval_count"] > 0 and answer["model"] == "m"
    old = task_answer(API, FEATURE_EXTRACTION, "ollama_embeddings", {"model": "m", "prompt": "a"})
    assert old == {"embedding": answer["embeddings"][0]}


CARD = ModelCard(
    format="gguf",
    architecture="llama",
    parameters=134_515_008,
    quantization="Q4_1",
    size_bytes=98,
    info={"general.architecture": "llama", "llama.context_length": 8192},
    generation={"temperature": 0.6, "top_k": 50, "eos_token_id": 2, "repetition_penalty": 1.1},
    template="{% if tools %}",
    shows_tools=True,
    license="apache-2.0",
    infills=True,
)


def server(*names: str) -> Any:
    status = [
        ModelStatus(msg, ready=name != "busy", failed=False, workers=1, registered_s=0.0, in_flight=0, queued=0)
        for name in names
        for msg in [model()]
    ]

    async def card(model: ModelStatus, *, whole: bool = False) -> ModelCard:
        return CARD

    return SimpleNamespace(models=status, measure=lambda: asyncio.sleep(0), card=card)


async def _awaited(answer: Awaitable[Answer]) -> Answer:
    return await answer


def page(operation: str, body: bytes = b"") -> Any:
    answer = API.page(operation, server("served"), {}, body)
    if not isinstance(answer, Answer):
        assert isinstance(answer, Awaitable)
        answer = asyncio.run(_awaited(answer))
    return json.loads(answer.body)


def test_pages_name_models_with_their_tag() -> None:
    (tag,) = page("tags")["models"]
    assert (tag["name"], tag["model"], tag["modified_at"]) == ("served:latest", "served:latest", "1970-01-01T00:00:00Z")
    (loaded,) = page("ps")["models"]
    assert loaded["name"] == "served:latest"
    assert (tag["size"], tag["details"], loaded["details"]) == (98, DETAILS, DETAILS)
    with pytest.raises(ModelNotFoundError, match="model 'x' not found"):
        page("show", b'{"name": "x"}')


DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "134.52M",
    "quantization_level": "Q4_1",
}


def test_a_model_is_shown_as_its_files_describe_it() -> None:
    description = page("show", b'{"model": "served:latest"}')
    assert description["details"] == DETAILS and description["model_info"] == CARD.info
    assert description["capabilities"] == ["completion", "tools", "insert"]
    assert (description["template"], description["license"]) == ("{% if tools %}", "apache-2.0")
    assert description["parameters"] == "temperature 0.6\ntop_k 50\nrepeat_penalty 1.1"


def status(card: ModelCard, task: str = "", engine: EngineInfo | None = None, **option: Any) -> OllamaShown:
    config = msgspec.structs.replace(model(), option=Options(**option))
    made = ModelStatus(config, ready=True, failed=False, workers=1, registered_s=0.0, in_flight=0, queued=0)
    return shown(replace(made, task=task, engine=engine), card)


def test_capabilities_are_what_the_model_does() -> None:
    sees = ModelCard(takes_images=True)
    assert status(sees).capabilities == ["completion", "vision"]
    assert status(sees, engine=EngineInfo()).capabilities == ["completion"]  # as it is loaded without
    assert status(ModelCard(), reasoning_parser="qwen3").capabilities == ["completion", "thinking"]
    assert status(ModelCard(), reasoning_parser="qwen3", enable_reasoning=False).capabilities == ["completion"]
    assert status(sees, FEATURE_EXTRACTION).capabilities == ["embedding"]
    assert status(sees, "text-classification").capabilities == []


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, ""), (900, "900"), (2_500, "2K"), (134_515_008, "134.52M"), (7_000_000, "7M"), (8_030_261_248, "8.0B")],
)
def test_parameters_are_counted_in_words(count: int, words: str) -> None:
    assert status(ModelCard(parameters=count)).details.parameter_size == words


def test_engines_tell_the_quantization_of_other_files_than_gguf() -> None:
    int8, plain = EngineInfo(quantize="int8", max_model_len=64), EngineInfo(dtype="bfloat16")
    assert (
        status(ModelCard(format="safetensors", quantization="BF16"), engine=int8).details.quantization_level == "int8"
    )
    assert status(ModelCard(quantization="BF16"), engine=plain).details.quantization_level == "bfloat16"
    assert status(CARD, engine=int8).details.quantization_level == "Q4_1"
    assert status(CARD, engine=int8).model_info["llama.context_length"] == 64


def test_the_tag_latest_is_no_part_of_a_models_name() -> None:
    assert API.model_of(b'{"model": "served:latest"}') == "served"
    assert API.model_of(b'{"model": "served"}') == "served"
