"""Well-behaved traffic: a table of scenarios in every API. Each asks greedily and returns the answer's text.

Runs in the soak's event loop. To add a scenario, add a row to `SCENARIOS`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from tests.soak.ledger import Broken, Refused

#: The models that the soak serves.
DEMO, MINDIE, HANDLER = "demo", "mindie", "guesser"
_PROMPT: Final = "What is deep learning?"
_MESSAGES: Final = [{"role": "user", "content": _PROMPT}]
_TOKENS: Final = 12
_SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "good": {"type": "boolean"}},
    "required": ["name", "good"],
    "additionalProperties": False,
}
_TOOL: Final = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"enum": ["sky", "sea"]}}}},
}
#: What comes after the last event of OpenAI's streams.
_DONE: Final = "[DONE]"
_BATCH_POLL_S: Final = 0.5
_BATCH_POLLS: Final = 120


async def checked(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer.

    Raises:
        Refused: the status is not 2xx.
    """
    body = await response.read()
    if response.status // 100 != 2:
        raise Refused(response.status, body.decode(errors="replace"))
    return body


@dataclass(frozen=True)
class Scenario:
    """One kind of request, for one model. `ask` returns the text of the answer, which has to be the same each time."""

    name: str
    model: str
    ask: Callable[[aiohttp.ClientSession], Awaitable[str]]


def _post(path: str, body: Mapping[str, Any], read: Callable[[bytes], str]) -> Callable[..., Awaitable[str]]:
    async def ask(session: aiohttp.ClientSession) -> str:
        async with session.post(path, json=body) as response:
            answer = await checked(response)
        try:
            return read(answer)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Broken(f"{type(error).__name__}: {error} in {answer[-300:]!r}") from error

    return ask


def _at(*path: str | int) -> Callable[[bytes], str]:
    """Reads a value of a JSON answer; values that aren't text are written as JSON."""

    def read(body: bytes) -> str:
        value = json.loads(body)
        for step in path:
            value = value[step]
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)

    return read


def _events(body: bytes) -> list[str]:
    return [line[5:].strip() for line in body.decode().splitlines() if line.startswith("data:")]


def _openai_stream(body: bytes) -> str:
    *events, last = _events(body)
    if last != _DONE:
        raise ValueError(f"the stream ends without {_DONE}")
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def _tgi_stream(body: bytes) -> str:
    return str(json.loads(_events(body)[-1])["generated_text"])


def _last_event(body: bytes) -> str:
    last = json.loads(_events(body)[-1])
    if "error" in last:
        raise ValueError(str(last))
    return "".join(_events(body))


def _triton_stream(body: bytes) -> str:
    return "".join(str(json.loads(event)["text_output"]) for event in _events(body))


def _lmi_stream(body: bytes) -> str:
    last = [json.loads(line) for line in body.splitlines() if line.strip()][-1]
    if last.get("details", {}).get("finish_reason") == "error":
        raise ValueError(str(last))
    return str(last["generated_text"])


def _tool_call(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["tool_calls"][0]["function"])


async def _batch(session: aiohttp.ClientSession) -> str:
    """Upload, run, read the results, delete: as a client of OpenAI's batches does."""
    asked = {"model": DEMO, "prompt": _PROMPT, "max_tokens": _TOKENS, "temperature": 0}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": asked}
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", json.dumps(line).encode(), filename="in.jsonl")
    async with session.post("/v1/files", data=form) as response:
        uploaded = json.loads(await checked(response))["id"]
    started = {"input_file_id": uploaded, "endpoint": "/v1/completions", "completion_window": "24h"}
    async with session.post("/v1/batches", json=started) as response:
        batch = json.loads(await checked(response))
    for _ in range(_BATCH_POLLS):
        async with session.get(f"/v1/batches/{batch['id']}") as response:
            batch = json.loads(await checked(response))
        if batch["status"] in ("completed", "failed", "expired", "cancelled"):
            break
        await asyncio.sleep(_BATCH_POLL_S)
    output = batch.get("output_file_id")
    if batch["status"] != "completed" or not output:
        raise Broken(f"the batch: {batch}")
    async with session.get(f"/v1/files/{output}/content") as response:
        result = json.loads(await checked(response))
    for file in (uploaded, output):
        async with session.delete(f"/v1/files/{file}") as response:
            await checked(response)
    return str(result["response"]["body"]["choices"][0]["text"])


_CHAT: Final = {"model": DEMO, "messages": _MESSAGES, "max_tokens": _TOKENS, "temperature": 0}
_COMPLETION: Final = {"model": DEMO, "prompt": _PROMPT, "max_tokens": _TOKENS, "temperature": 0}
_INPUTS: Final = {"inputs": _PROMPT, "parameters": {"max_new_tokens": _TOKENS}}
_GENERATE: Final = {"text_input": _PROMPT, "parameters": {"max_tokens": _TOKENS, "temperature": 0}}
_TENSORS: Final = {
    "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [_PROMPT]}],
    "parameters": {"max_tokens": _TOKENS, "temperature": 0},
}
_FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "one", "schema": _SCHEMA}}

SCENARIOS: Final = (
    Scenario("LMI", DEMO, _post(f"/predictions/{DEMO}", _INPUTS, _at("generated_text"))),
    Scenario("LMI, streamed", DEMO, _post(f"/predictions/{DEMO}", {**_INPUTS, "stream": True}, _lmi_stream)),
    Scenario("OpenAI chat", DEMO, _post("/v1/chat/completions", _CHAT, _at("choices", 0, "message", "content"))),
    Scenario("OpenAI chat, streamed", DEMO, _post("/v1/chat/completions", {**_CHAT, "stream": True}, _openai_stream)),
    Scenario("OpenAI completion", DEMO, _post("/v1/completions", _COMPLETION, _at("choices", 0, "text"))),
    Scenario(
        "OpenAI completion, streamed", DEMO, _post("/v1/completions", {**_COMPLETION, "stream": True}, _openai_stream)
    ),
    Scenario(
        "OpenAI structured output",
        DEMO,
        _post(
            "/v1/chat/completions",
            {**_CHAT, "max_tokens": 64, "response_format": _FORMAT},
            _at("choices", 0, "message", "content"),
        ),
    ),
    Scenario(
        "OpenAI tools",
        DEMO,
        _post(
            "/v1/chat/completions",
            {**_CHAT, "max_tokens": 64, "tools": [_TOOL], "tool_choice": "required"},
            _tool_call,
        ),
    ),
    Scenario("OpenAI batch", DEMO, _batch),
    Scenario("TGI", DEMO, _post(f"/generate?model_name={DEMO}", _INPUTS, _at("generated_text"))),
    Scenario("TGI, streamed", DEMO, _post(f"/generate_stream?model_name={DEMO}", _INPUTS, _tgi_stream)),
    Scenario("TGI tokenize", DEMO, _post(f"/tokenize?model_name={DEMO}", {"inputs": _PROMPT}, _at())),
    Scenario("MindIE, streamed", MINDIE, _post(f"/generate_stream?model_name={MINDIE}", _INPUTS, _last_event)),
    Scenario("Triton generate", DEMO, _post(f"/v2/models/{DEMO}/generate", _GENERATE, _at("text_output"))),
    Scenario("Triton generate, streamed", DEMO, _post(f"/v2/models/{DEMO}/generate_stream", _GENERATE, _triton_stream)),
    Scenario("Triton infer", DEMO, _post(f"/v2/models/{DEMO}/infer", _TENSORS, _at("outputs"))),
    Scenario("handler", HANDLER, _post(f"/predictions/{HANDLER}", {"text": "the cat is on the mat"}, _at())),
)
#: What a small request is, for the client whose waits are measured.
VICTIM: Final = Scenario(
    "victim",
    DEMO,
    _post(
        "/v1/completions",
        {"model": DEMO, "prompt": "What is", "max_tokens": 1, "temperature": 0},
        _at("choices", 0, "text"),
    ),
)
