"""Hostile requests: a table of attacks, each of which has to be refused in its dialect within `REFUSAL_S`.

Runs in the soak's event loop. Bodies are made before the soak begins, and sent in pieces: some have many megabytes, and
the soak's own work would count as the server's. To add an attack, add a row
to `ATTACKS`. Attacks that are not one request (`slow`, `padded`) talk to the socket themselves.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from tests.soak.traffic import DEMO, HANDLER

REFUSAL_S: Final = 1.0
#: After this the attacker leaves.
PATIENCE_S: Final = 20.0
_MIB: Final = 1 << 20
_PROMPT: Final = {"model": DEMO, "prompt": "x", "max_tokens": 1}
_CHAT: Final = {"model": DEMO, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
_JSON: Final = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Attack:
    """A request, by its body, or a conversation (`talk`). Returns statuses; 0 is a connection that the server closed.

    Attributes:
        accepted: the statuses that are right.
        refusal_s: how long a refusal may take.
    """

    name: str
    path: str = "/v1/completions"
    body: Callable[[], bytes] = bytes
    headers: Mapping[str, str] = field(default_factory=lambda: _JSON)
    accepted: frozenset[int] = frozenset({400, 413, 422})
    talk: Callable[[str], Awaitable[int]] | None = None
    refusal_s: float = REFUSAL_S

    async def launch(self, url: str, session: aiohttp.ClientSession, body: bytes) -> int:
        """The status of the answer.

        Raises:
            TimeoutError: there was none within `PATIENCE_S`.
            aiohttp.ClientError, OSError: the connection broke.
        """
        async with asyncio.timeout(PATIENCE_S):
            if self.talk is not None:
                return await self.talk(url)
            async with session.post(self.path, data=io.BytesIO(body), headers=self.headers) as response:
                await response.read()
                return response.status


def _encoded(**fields: Any) -> Callable[[], bytes]:
    return lambda: json.dumps({**_PROMPT, **fields}).encode()


def _references() -> bytes:
    """One definition, named in 2,000 spellings: each character as it is, or percent-encoded."""
    name = "definition-used-often"

    def spelled(number: int) -> str:
        return "#/$defs/" + "".join(f"%{ord(c):02x}" if number >> at & 1 else c for at, c in enumerate(name))

    leaves = {f"p{number}": {"$ref": spelled(number)} for number in range(2000)}
    schema = {"$ref": spelled(0), "$defs": {name: {"type": "object", "properties": leaves}}}
    return json.dumps({**_PROMPT, "guided_json": schema}).encode()


def _alternatives() -> bytes:
    branches = [
        {"type": "object", "required": ["k"], "properties": {"k": {"enum": [f"{one}-{value}" for value in range(300)]}}}
        for one in range(100)
    ]
    return json.dumps({**_PROMPT, "guided_json": {"oneOf": branches}}).encode()


def _regex() -> bytes:
    return json.dumps({**_PROMPT, "guided_regex": "(ab|cd)" * (8 * _MIB // 7)}).encode()


def _messages() -> bytes:
    return b'{"model":"%s","messages":[%s]}' % (
        DEMO.encode(),
        b",".join([b'{"role":"user","content":"x"}'] * 1_000_000),
    )


def _blocks() -> bytes:
    """54 MB of one answer's text, in the blocks that a chat may have: it exceeds the model's context alone."""
    blocks = [{"type": "text", "text": "a" * 6000}] * 9000
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": blocks}]
    return json.dumps({"model": DEMO, "max_tokens": 1, "messages": said}).encode()


def _items() -> bytes:
    """As much, in the items of a response."""
    items = [{"role": "user", "content": "a" * 6000}] * 9000
    return json.dumps({"model": DEMO, "max_output_tokens": 1, "store": False, "input": items}).encode()


def _turns() -> bytes:
    """As much, in Ollama's messages, with a schema."""
    turns = [{"role": "user", "content": "a" * 6000}] * 9000
    return json.dumps({"model": DEMO, "messages": turns, "format": json.loads(_alternatives())["guided_json"]}).encode()


def _keep_alive() -> bytes:
    return b'{"model":"%s","messages":[],"stream":false,"keep_alive":%d}' % (DEMO.encode(), 10**400)


def _token_ids() -> bytes:
    return b'{"model":"%s","max_tokens":1,"prompt":[%s]}' % (DEMO.encode(), b",".join([b"1"] * 4_000_000))


def _tools() -> bytes:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": parameters}} for i in range(100_000)]
    return json.dumps({**_CHAT, "tools": tools, "tool_choice": "required"}).encode()


def _infer(sampling: str) -> bytes:
    """1,024 prompts that share one long `sampling_parameters`, with a token for each: they are no more than traffic."""
    prompts = {"name": "text_input", "shape": [1024], "datatype": "BYTES", "data": ["a"] * 1024}
    shared = {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": [sampling]}
    return json.dumps({"inputs": [prompts, shared], "parameters": {"max_tokens": 1}}).encode()


def _parts() -> bytes:
    """A form of fields with names and without data."""
    return b"--b\r\nContent-Disposition: form-data; name=" + b"n" * 15_000 + b"\r\n\r\n\r\n"


def _deep() -> bytes:
    return json.dumps(_PROMPT)[:-1].encode() + b',"guided_json":' + b'{"not":' * 5000 + b"{}" + b"}" * 5001


async def _status(reader: asyncio.StreamReader) -> int:
    """The status of a raw answer; 0 if the connection was closed without one."""
    try:
        line = await reader.readline()
    except ConnectionError:
        return 0
    return int(line.split()[1]) if line else 0


async def _padded_headers(url: str) -> int:
    """Megabytes of one header."""
    reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    try:
        writer.write(b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Padding: ")
        for _ in range(90):
            writer.write(b" " * _MIB)
            await writer.drain()
        writer.write(b"\r\n\r\n")
        return await _status(reader)
    except ConnectionError:
        return 0
    finally:
        writer.close()


async def _slowloris(url: str) -> int:
    """100 connections that send a byte of a header now and then, for five seconds. What they get does not matter."""
    parts = urlsplit(url)
    opened = await asyncio.gather(*(asyncio.open_connection(parts.hostname, parts.port) for _ in range(100)))
    try:
        for _ in range(5):
            for _, writer in opened:
                writer.write(b"G" if writer.get_extra_info("peername") else b"")
            await asyncio.sleep(1)
    finally:
        for _, writer in opened:
            writer.close()
    return 0


#: A grammar within the limits is refused by its trial, whose low priority makes it slow where others compute.
_COMPILED_S: Final = 15.0
#: A prompt of this length is rendered and tokenized, beside others, until it is found too long.
_LONG_S: Final = 15.0
_REFUSED_ORIGIN: Final = frozenset({403})
#: What costs no more than other traffic may be answered.
_ANSWERED_OR_REFUSED: Final = frozenset({200, 400, 413})
_MULTIPART: Final = {"Content-Type": "multipart/form-data; boundary=b"}
_INFER: Final = f"/v2/models/{DEMO}/infer"

ATTACKS: Final = (
    Attack(
        "schema: one reference in 2,000 spellings",
        body=_references,
        accepted=_ANSWERED_OR_REFUSED,
        refusal_s=_COMPILED_S,
    ),
    Attack("schema: oneOf of 100 objects with enums", body=_alternatives, accepted=_ANSWERED_OR_REFUSED),
    Attack("schema: 5,000 levels deep", body=_deep),
    Attack("guided_regex of 8 MiB", body=_regex),
    Attack("10^6 messages", "/v1/chat/completions", _messages),
    Attack("4 x 10^6 token ids", body=_token_ids),
    Attack("messages: 54 MB in 9,000 blocks", "/v1/messages", _blocks, refusal_s=_LONG_S),
    Attack("responses: 54 MB in 9,000 items", "/v1/responses", _items, refusal_s=_LONG_S),
    Attack("Ollama: 54 MB in 9,000 messages", "/api/chat", _turns, refusal_s=_LONG_S),
    Attack("Ollama: keep_alive of 400 digits", "/api/chat", _keep_alive, accepted=_ANSWERED_OR_REFUSED),
    Attack("10^5 tools", "/v1/chat/completions", _tools),
    Attack(
        "infer: 1,024 prompts, nested values",
        _INFER,
        lambda: _infer(json.dumps({"x": [[]] * 20_000})),
        accepted=_ANSWERED_OR_REFUSED,
    ),
    Attack(
        "infer: 1,024 prompts, unknown names",
        _INFER,
        lambda: _infer(json.dumps({f"n{i}": 1 for i in range(20000)})),
        accepted=_ANSWERED_OR_REFUSED,
    ),
    Attack("infer: 10^5 levels", _INFER, lambda: _infer('{"x":' + "[" * 100_000 + "]" * 100_000 + "}")),
    Attack("body: 10^6 levels", body=lambda: b"[" * 1_000_000),
    Attack("form: 30 MiB of names", "/v1/files", lambda: _parts() * 2000 + b"--b--\r\n", _MULTIPART),
    Attack("form: foreign boundary*", "/v1/files", bytes, {"Content-Type": "multipart/form-data; boundary*=u''%e2%82"}),
    Attack(
        "handler: form of 30 MiB of names",
        f"/predictions/{HANDLER}",
        lambda: _parts() * 2000,
        _MULTIPART,
        frozenset({424}),
    ),
    Attack("header of 90 MiB", talk=_padded_headers, accepted=frozenset({0, 400, 431})),
    Attack("slowloris: 100 connections", talk=_slowloris, accepted=frozenset({0})),
    Attack(
        "cross-site Origin",
        body=_encoded(),
        headers={**_JSON, "Origin": "http://evil.example"},
        accepted=_REFUSED_ORIGIN,
    ),
    Attack("foreign Host", body=_encoded(), headers={**_JSON, "Host": "evil.example"}, accepted=_REFUSED_ORIGIN),
)
