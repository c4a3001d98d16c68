"""Every dialect's stream is in its grammar (`event_order`), over real sockets, however the answer ends.

The models repeat what they are told to say, which may have reasoning and tool calls in it; two of them slowly.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer
from tests.contract.event_order import GRAMMARS
from tests.serving.client import ask, until_quiet
from tests.serving.test_dialect_failures import process

#: Writes the last message and nothing else; Hermes' syntax of calls.
TEMPLATE = "{# <tool_call> #}{% if tools %}{% endif %}{{ messages[-1].content }}"
#: The token that ends an answer of its own accord.
END = "<|end|>"
THOUGHT = "<think>\nHm.\n</think>\n\n"
CALLS = "".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "Z\u00fcrich"}}}}\n</tool_call>'
    for name in ("now", "weather")
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMES = ("now", "weather")
LIMIT = 400
#: Longer than a test lasts, at 20 ms a token.
LONG = 4000

#: The models of which a process is killed.
SLOW = ("slow_plain", "slow_compat")

Body = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a request says, for any API."""

    text: str
    limit: int = LIMIT
    stop: str = ""
    tools: bool = False
    n: int = 1


def openai_fields(asked: Asked) -> Body:
    body: Body = {"max_tokens": asked.limit, "stream": True, "stream_options": {"include_usage": True}, "n": asked.n}
    return body | ({"stop": [asked.stop]} if asked.stop else {})


def tools_of(asked: Asked) -> Body:
    functions = [{"name": name, "parameters": SCHEMA} for name in NAMES]
    return {"tools": [{"type": "function", "function": one} for one in functions]} if asked.tools else {}


def messages(asked: Asked) -> Body:
    return {"messages": [{"role": "user", "content": asked.text}]}


def openai_chat(asked: Asked) -> Body:
    return messages(asked) | openai_fields(asked) | tools_of(asked)


def completion(asked: Asked) -> Body:
    return {"prompt": asked.text} | openai_fields(asked)


def anthropic(asked: Asked) -> Body:
    body = messages(asked) | {"max_tokens": asked.limit, "stream": True}
    if asked.tools:
        body["tools"] = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
    return body | ({"stop_sequences": [asked.stop]} if asked.stop else {})


def responses(asked: Asked) -> Body:
    body: Body = {"input": asked.text, "max_output_tokens": asked.limit, "stream": True, "store": False}
    if asked.tools:
        body["tools"] = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in NAMES]
    return body


def ollama(asked: Asked) -> Body:
    return {"options": {"num_predict": asked.limit, "stop": [asked.stop] if asked.stop else []}}


def ollama_chat(asked: Asked) -> Body:
    return messages(asked) | ollama(asked) | tools_of(asked)


def ollama_generate(asked: Asked) -> Body:
    return {"prompt": asked.text} | ollama(asked)


def parameters(name: str, **more: Any) -> Callable[[Asked], Body]:
    """A body with `inputs`, whose limit is in the parameter `name`."""

    def body(asked: Asked) -> Body:
        stop = {"stop": [asked.stop]} if asked.stop else {}
        return {"inputs": asked.text, "parameters": {name: asked.limit, "details": True, **stop, **more}}

    return body


def triton(asked: Asked) -> Body:
    stop = {"stop": [asked.stop]} if asked.stop else {}
    return {"text_input": asked.text, "parameters": {"max_tokens": asked.limit, **stop}}


@dataclass(frozen=True)
class Stream:
    """How a dialect is asked for a stream.

    Attributes:
        path: with {} for the model's name.
        body: writes a request, but for the model's name.
        reasons: the API's names of an answer that ended of its own accord, at its limit, at a stop sequence, and that
            called tools; without them, the API has no place for a reason.
        model: "plain", or "compat" under the options that change what a dialect says.
        chat: whether reasoning and calls are split off.
        several: whether an answer may have several choices.
    """

    path: str
    body: Callable[[Asked], Body]
    reasons: tuple[str, str, str, str] | None
    model: str = "plain"
    chat: bool = False
    several: bool = False


OPENAI = ("stop", "length", "stop", "tool_calls")
DETAILED = ("eos_token", "length", "stop_sequence", "eos_token")
TGI = parameters("max_new_tokens")
#: By the names of the grammars. To add a dialect, add a row here and one there.
STREAMS: Mapping[str, Stream] = {
    "OpenAI chat": Stream("/v1/chat/completions", openai_chat, OPENAI, chat=True, several=True),
    "OpenAI completion": Stream("/v1/completions", completion, OPENAI, several=True),
    "OpenAI chat as TGI": Stream("/v1/chat/completions", openai_chat, OPENAI, "compat", chat=True),
    "OpenAI completion as TGI": Stream("/v1/completions", completion, OPENAI, "compat"),
    "LMI chat": Stream("/invocations", openai_chat, DETAILED, chat=True),
    "LMI completion": Stream("/invocations", completion, OPENAI),
    "Anthropic": Stream(
        *("/v1/messages", anthropic, ("end_turn", "max_tokens", "stop_sequence", "tool_use")),
        chat=True,
    ),
    "OpenAI responses": Stream(
        *("/v1/responses", responses, ("completed", "max_output_tokens", "", "completed")),
        chat=True,
    ),
    "Ollama chat": Stream("/api/chat", ollama_chat, ("stop", "length", "stop", "stop"), chat=True),
    "Ollama generate": Stream("/api/generate", ollama_generate, ("stop", "length", "stop", "stop"), chat=True),
    "TGI": Stream("/generate_stream", TGI, DETAILED),
    "LMI jsonlines": Stream("/invocations", lambda asked: TGI(asked) | {"stream": True}, DETAILED),
    "LMI sse": Stream("/invocations", parameters("max_new_tokens", output_formatter="sse"), DETAILED),
    "LMI as TGI": Stream("/invocations", lambda asked: TGI(asked) | {"stream": True}, DETAILED, "compat"),
    "MindIE": Stream("/generate_stream", TGI, DETAILED, "compat"),
    "Triton": Stream("/v2/models/{}/generate_stream", triton, None),
}

#: What is asked; the text of the answer; which of `Stream.reasons` ends it.
SCENARIOS: dict[str, tuple[Asked, str, int]] = {
    "ends of its own accord": (Asked(f"a b\u00e9 \U0001f600{END}"), "a b\u00e9 \U0001f600", 0),
    "says nothing": (Asked(END), "", 0),
    "ends at its limit": (Asked("abc def", limit=5), "abc d", 1),
    "ends at a limit of one token": (Asked("abc def", limit=1), "a", 1),
    "ends within a character": (Asked("ab\U0001f600", limit=4), "ab", 1),
    "ends at a stop sequence": (Asked(f"abc def{END}", stop=" de"), "abc", 2),
    "begins with a stop sequence": (Asked(f"abc def{END}", stop="abc"), "", 2),
    "may yet be a stop sequence at its end": (Asked(f"abc d{END}", stop=" def"), "abc d", 0),
    "may yet be a stop sequence at its limit": (Asked("abc def", stop=" dez", limit=6), "abc de", 1),
}
#: The same for chats whose reasoning and calls are split off.
CHATS: dict[str, tuple[Asked, str, int]] = {
    "reasons": (Asked(f"{THOUGHT}Yes.{END}"), "Yes.", 0),
    "ends within its reasoning": (Asked(f"{THOUGHT}Yes.", limit=10), "", 1),
    "only reasons": (Asked(f"{THOUGHT}{END}"), "", 0),
    "calls tools": (Asked(f"{CALLS}{END}", tools=True), "", 3),
    "reasons, speaks and calls tools": (Asked(f"{THOUGHT}So:{CALLS}{END}", tools=True), "So:", 3),
    "ends within a call": (Asked(f"So:{CALLS}", tools=True, limit=50), "So:", 1),
}


def model(path: Path, **properties: object) -> str:
    write_byte_tokenizer(path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    settings = {"option.model_id": path, "option.rolling_batch": FAKE_ENGINE, "option.reasoning_parser": "qwen3"}
    settings["option.fake_end_token"] = 256
    (path / "serving.properties").write_text("".join(f"{k}={v}\n" for k, v in (settings | properties).items()))
    return f"{path.name}={path}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    compat = {"option.tgi_compat": "true", "option.tgi_dialect": "mindie"}
    slow = {"option.fake_step_ms": 20}
    specs = (
        model(folder / "plain"),
        model(folder / "compat", **compat),
        model(folder / "slow_plain", **slow),
        model(folder / "slow_compat", **slow, **compat),
    )
    with running_server(*(argument for spec in specs for argument in ("-m", spec))) as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client_session:
        yield client_session


def request(server: RunningServer, name: str, asked: Asked, *, slow: bool = False) -> tuple[str, bytes]:
    """(address, body) of a request for a stream."""
    stream = STREAMS[name]
    named = f"slow_{stream.model}" if slow else stream.model
    url = f"{server.url}{stream.path.format(named)}"
    body = stream.body(asked)
    if "/v2/" not in stream.path:
        url, body = f"{url}?model_name={named}", body | {"model": named}
    return url, json.dumps(body).encode()


def streamed(server: RunningServer, name: str, asked: Asked) -> str:
    url, body = request(server, name, asked)
    answer = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_every_stream_has_a_grammar() -> None:
    assert GRAMMARS.keys() == STREAMS.keys()


CASES = [
    *((name, scenario) for name in STREAMS for scenario in SCENARIOS),
    *((name, scenario) for name, stream in STREAMS.items() if stream.chat for scenario in CHATS),
]


@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_a_stream_is_in_its_dialects_grammar(server: RunningServer, name: str, scenario: str) -> None:
    asked, text, reason = {**SCENARIOS, **CHATS}[scenario]
    if asked.tools and name == "Ollama generate":
        pytest.skip("prompts have no tools")
    if asked.stop and name == "OpenAI responses":
        pytest.skip("responses have no stop sequences")
    grammar, stream = GRAMMARS[name], STREAMS[name]
    events = grammar.check(streamed(server, name, asked))
    assert grammar.text(events) == text
    assert grammar.reasons(events) == ([] if stream.reasons is None else [stream.reasons[reason]])


@pytest.mark.parametrize("name", [name for name, stream in STREAMS.items() if stream.several])
def test_the_choices_of_a_stream_are_in_its_grammar(server: RunningServer, name: str) -> None:
    events = GRAMMARS[name].check(streamed(server, name, Asked(f"abc{END}", n=3)))
    assert GRAMMARS[name].reasons(events) == ["stop"] * 3


async def _read(response: aiohttp.ClientResponse, begun: asyncio.Queue[str]) -> str:
    data = await response.content.readany()
    begun.put_nowait("")
    return (data + await response.content.read()).decode()


async def _begun(
    session: aiohttp.ClientSession, server: RunningServer, name: str, begun: asyncio.Queue[str], **headers: str
) -> str:
    """A stream that would last long, read to its end; its first piece is announced."""
    url, body = request(server, name, Asked("abc def ", limit=LONG), slow=True)
    headers = {"content-type": "application/json", **headers}
    async with session.post(url, data=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await _read(response, begun)


@pytest.mark.parametrize("module", ["djl_python.engine", "djl_python.worker"])
async def test_an_error_ends_a_stream_as_the_grammar_says(
    server: RunningServer, session: aiohttp.ClientSession, module: str
) -> None:
    begun: asyncio.Queue[str] = asyncio.Queue()
    async with asyncio.timeout(60):
        streams = {name: asyncio.create_task(_begun(session, server, name, begun)) for name in STREAMS}
        for _ in streams:
            await begun.get()
        for victim in [process(server, name, module) for name in SLOW]:
            victim.kill()
        for name, stream in streams.items():
            events = GRAMMARS[name].check_failed(await stream)
            assert len(events) > 1
        for name in SLOW:  # both answer again
            url = f"{server.url}/invocations?model_name={name}"
            while (await ask(session, url, TGI(Asked("abc", limit=1)))).status != 200:
                await asyncio.sleep(0.1)


async def test_a_deadline_ends_a_stream_as_the_grammar_says(
    server: RunningServer, session: aiohttp.ClientSession
) -> None:
    begun: asyncio.Queue[str] = asyncio.Queue()
    streams = {
        name: asyncio.create_task(_begun(session, server, name, begun, **{"x-request-timeout": "3"}))
        for name in STREAMS
    }
    for name, stream in streams.items():
        grammar, reasons = GRAMMARS[name], STREAMS[name].reasons
        events = grammar.check(await stream)
        assert "abc def".startswith(grammar.text(events)[:7]) and grammar.text(events)
        assert grammar.reasons(events) == ([] if reasons is None else [reasons[1]])


async def test_a_stream_that_is_left_is_in_its_grammar_so_far(
    server: RunningServer, session: aiohttp.ClientSession
) -> None:
    for name in STREAMS:
        url, body = request(server, name, Asked("abc def ", limit=LONG), slow=True)
        async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
            data = b""
            while len(data) < 1000 or not data.endswith(b"\n"):
                data += await response.content.readany()
            response.close()
        assert len(GRAMMARS[name].check_cut(data.decode())) > 1
    await until_quiet(session, server.url)
