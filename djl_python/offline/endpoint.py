"""Answers a batch's requests over HTTP. Runs on the event loop of `djl-serving batch`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import httpx2

from ..batch.lines import RequestLine
from ..batch.results import BatchReply
from ..batch.runner import GivenUpError, NoReplyError, NotTakenError, Send
from ..formats.json_framing import JSON

#: Statuses of servers and proxies that have not taken a request.
_NOT_TAKEN: Final = frozenset({429, 502, 503})
#: Statuses of servers that would refuse all requests.
_REFUSED: Final = frozenset({401, 403})


@asynccontextmanager
async def endpoint(url: str, headers: Mapping[str, str], concurrency: int, timeout_s: float) -> AsyncIterator[Send]:
    """What sends a request to the server at `url`, and waits up to `timeout_s` for its answer."""
    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    timeout = httpx2.Timeout(timeout_s, connect=10.0)
    async with httpx2.AsyncClient(limits=limits, timeout=timeout, headers=dict(headers)) as client:

        async def send(request: RequestLine) -> BatchReply:
            try:
                answer = await client.post(url + request.url, content=request.body, headers={"content-type": JSON})
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as exc:
                raise NotTakenError(f"{url}: {exc}") from exc
            except httpx2.TimeoutException as exc:
                raise NoReplyError(f"no answer within {timeout_s:g} s") from exc
            except httpx2.TransportError as exc:
                raise NoReplyError(f"{type(exc).__name__}: {exc}") from exc
            return _reply(answer, url)

        yield send


def _reply(answer: httpx2.Response, url: str) -> BatchReply:
    if answer.status_code in _NOT_TAKEN:
        after = answer.headers.get("retry-after", "")
        raise NotTakenError(_reason(answer, url), float(after) if after.isascii() and after.isdigit() else 0.0)
    if answer.status_code in _REFUSED:
        raise GivenUpError(f"{_reason(answer, url)} (the variable DJL_API_KEY sends a key, --header anything else)")
    return BatchReply(answer.status_code, answer.content, answer.headers.get("x-request-id", ""))


def _reason(answer: httpx2.Response, url: str) -> str:
    return f"{url}: HTTP {answer.status_code}: {answer.text[:300]}"
