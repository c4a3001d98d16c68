"""Structured output and tool calls with a model of random weights: what comes out parses, whatever the model wants."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from openai.types.chat import ChatCompletionToolParam

from djl_python.testing import EOS, RunningServer, running_server, write_byte_tokenizer
from tests.checkpoints import build_checkpoint
from tests.schemas import random_schema

CONTEXT = 2048
#: What closes a string, an object or an array: bytes that a random model may otherwise never write.
CLOSERS: Any = {str(ord(closer)): 4 for closer in '"}],'}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} in <tool_call> {% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %} {{ call.function.name }} {{ call.function.arguments }}{% endfor %}\n"
    "{% endfor %}"
)


def tool(name: str, **properties: Any) -> ChatCompletionToolParam:
    parameters: dict[str, object] = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("heat", unit={"enum": ["c", "f"]}, days={"type": "integer", "minimum": 0, "maximum": 9}),
    tool("now"),
    tool("find", place={"type": "string", "maxLength": 8}),
]
SCHEMAS = {each["function"]["name"]: each["function"].get("parameters") for each in TOOLS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = build_checkpoint(tmp_path_factory.mktemp("models") / "random", "llama")
    write_byte_tokenizer(path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((path / "config.json").read_bytes())
    config |= {"max_position_embeddings": CONTEXT, "eos_token_id": 256}
    (path / "config.json").write_text(json.dumps(config))
    assert json.loads((path / "tokenizer_config.json").read_bytes())["eos_token"] == EOS
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 256}))
    with running_server("-m", f"random={path}", environment={"OPTION_THREADS": "1"}) as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as openai_client:
        yield openai_client


def asked(content: str) -> Any:
    return [{"role": "user", "content": content}]


# ------------------------------------------------------------------------------------------------ schemas


async def instance(client: openai.AsyncOpenAI, index: int) -> str:
    """A chat held to the index-th schema; checked."""
    schema = random_schema(random.Random(index))
    form: Any = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    answer = await client.chat.completions.create(
        model="random",
        messages=asked(f"Number {index}"),
        max_tokens=1000,
        temperature=index % 2,
        seed=index,
        logit_bias=CLOSERS,
        response_format=form,
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.content is not None
    Draft202012Validator(schema).validate(json.loads(choice.message.content))
    return choice.message.content


async def test_fifty_schemas_alone_and_among_sixteen_others(client: openai.AsyncOpenAI) -> None:
    alone = [await instance(client, index) for index in range(50)]

    async def chatter(index: int) -> None:
        """An unconstrained request after another, until the test is over."""
        while True:
            await client.completions.create(model="random", prompt=f"Crowd {index}", max_tokens=40)

    crowd = [asyncio.create_task(chatter(index)) for index in range(16)]
    try:
        assert await asyncio.gather(*(instance(client, index) for index in range(50))) == alone
    finally:
        assert not any(task.done() for task in crowd)
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


def test_a_schema_is_obeyed_in_every_dialect_that_has_a_field_for_it(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}}, "required": ["n"]}
    openais = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    chat = {"messages": asked("Hi"), "max_tokens": 200, "temperature": 0}
    tgi = {"inputs": "Hi", "parameters": {"max_new_tokens": 200, "do_sample": False}}
    bodies: list[tuple[str, Any]] = [
        ("/invocations", chat | {"response_format": openais}),
        ("/v1/chat/completions", chat | {"response_format": openais}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 200, "temperature": 0, "response_format": openais}),
        ("/v1/chat/completions", chat | {"response_format": {"type": "json_object", "value": schema}}),
        ("/v1/chat/completions", chat | {"guided_json": schema}),
        *(
            ("/generate", {**tgi, "parameters": {**tgi["parameters"], "grammar": grammar}})  # type: ignore[dict-item]
            for grammar in (
                {"type": "json", "value": schema},
                {"type": "json_object", "value": schema},
                {"type": "json_schema", "value": {"name": "it", "schema": schema}},
            )
        ),
    ]
    for path, body in bodies:
        answer = httpx.post(server.url + path, json=body, timeout=60).json()
        text = answer["generated_text"] if "generated_text" in answer else _said(answer["choices"][0])
        value = json.loads(text)
        Draft202012Validator({**schema, "additionalProperties": False}).validate(value)


@pytest.mark.parametrize("form", ["guided_choice", "structured_outputs"])
async def test_a_choice_of_texts_is_obeyed(client: openai.AsyncOpenAI, form: str) -> None:
    texts = ["a/b", "(a|b)*", "a\\n", '"\n\t"', "深い 🚀", "#x [y] {z} ^.$ -~"]
    said = set()
    for seed in range(12):
        answer = await client.chat.completions.create(
            model="random",
            messages=asked("Hi"),
            max_tokens=100,
            seed=seed,
            logit_bias={str(texts[seed % len(texts)].encode()[0]): 6},
            extra_body={form: texts if form == "guided_choice" else {"choice": texts}},
        )
        assert answer.choices[0].message.content in texts
        said.add(answer.choices[0].message.content)
    assert len(said) > 2


@pytest.mark.parametrize("form", ["grammar", "ebnf", "guided_grammar", "structured_outputs"])
async def test_a_grammar_in_gbnf(client: openai.AsyncOpenAI, form: str) -> None:
    gbnf = 'root ::= move (", " move){1,2} "."\nmove ::= piece? [a-h] [1-8] # a square\npiece ::= [KQRBN]'
    said = set()
    for seed in range(4):
        answer = await client.chat.completions.create(
            model="random",
            messages=asked("Hi"),
            max_tokens=100,
            seed=seed,
            extra_body={form: {"grammar": gbnf} if form == "structured_outputs" else gbnf},
        )
        text = answer.choices[0].message.content or ""
        assert re.fullmatch(r"[KQRBN]?[a-h][1-8](, [KQRBN]?[a-h][1-8]){1,2}\.", text)
        assert answer.choices[0].finish_reason == "stop"
        said.add(text)
    assert len(said) > 1
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(
            model="random",
            prompt="Hi",
            extra_body={form: {"grammar": "root ::= a"} if form == "structured_outputs" else "root ::= a"},
        )
    field = "structured_outputs.grammar" if form == "structured_outputs" else form
    assert caught.value.param == field
    assert f"{field}: grammar is not valid: GBNF: there is no rule a" in caught.value.message


def _said(choice: Any) -> str:
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


# ------------------------------------------------------------------------------------------------ tools


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("choice", ["required", "named"])
@pytest.mark.parametrize("stream", [False, True])
async def test_forced_calls_always_parse(client: openai.AsyncOpenAI, choice: str, stream: bool, seed: int) -> None:
    name = list(SCHEMAS)[seed % 3]
    given: dict[str, Any] = {
        "model": "random",
        "messages": asked("Hi"),
        "tools": TOOLS,
        "tool_choice": choice if choice == "required" else {"type": "function", "function": {"name": name}},
        "temperature": 1,
        "seed": seed,
        "max_tokens": 1000,
        "logit_bias": CLOSERS,
    }
    if stream:
        async with client.chat.completions.stream(**given) as events:
            answer: Any = await events.get_final_completion()
    else:
        answer = await client.chat.completions.create(**given)
    (first,) = answer.choices
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    calls = first.message.tool_calls
    assert len({call.id for call in calls}) == len(calls) >= 1
    if choice == "named":
        assert [call.function.name for call in calls] == [name]
    for call in calls:
        Draft202012Validator(SCHEMAS[call.function.name]).validate(json.loads(call.function.arguments))
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "21"} for call in calls]
    again = await client.chat.completions.create(
        model="random", messages=[*asked("Hi"), first.message, *results], tools=TOOLS, max_tokens=3
    )
    assert again.usage is not None and again.usage.completion_tokens >= 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_beside_tools_has_its_form(client: openai.AsyncOpenAI, stream: bool) -> None:
    """The model calls no tool, and so its answer is an instance of the schema."""
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"]}
    given: dict[str, Any] = {
        "model": "random",
        "messages": asked("Hi"),
        "tools": TOOLS,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
    }
    if stream:
        chunks = [chunk async for chunk in await client.chat.completions.create(**given, stream=True)]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        answer = await client.chat.completions.create(**given)
        text = answer.choices[0].message.content or ""
    Draft202012Validator(schema).validate(json.loads(text))
