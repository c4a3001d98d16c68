"""Responses in the background, over real sockets, whatever a worker answers."""

from __future__ import annotations

import asyncio
import json
import weakref
from typing import Any, Final

import httpx

from djl_python.formats.json_framing import JSON, SSE
from tests.server.harness import Site, running, until
from tests.server.in_process import InProcess

#: 200, and no response: as handlers of the user's may answer. Deep ones end msgspec's recursion.
NONE_OF_THEM: Final = (
    "hello",
    "[]",
    '{"id":"a"}',
    '{"id":"a","status":"unheard of"}',
    '{"id":"\xff","status":"completed"}',
    '{"id":"a","status":"completed","x":' + "[" * 100_000,
)

#: An event that ends a stream.
COMPLETED: Final = 'event: response.completed\ndata: {"response":{"id":"a","status":"completed","output":[]}}\n\n'

NO_ROOM: Final = "there is no room for more of this response (responses_max_bytes=20000)"


async def asked(site: Site, answer: str, kind: str, **more: Any) -> httpx.Response:
    order = {"input": "a", "do": "bytes", "answer": answer, "kind": kind, **more}
    return await site.client.post("/v1/responses", json=order)


async def ended(site: Site, response_id: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            response: dict[str, Any] = (await site.client.get(f"/v1/responses/{response_id}")).json()
            if response["status"] not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(0.01)


def events_in(stream: str) -> list[dict[str, Any]]:
    return [json.loads(event.partition("data: ")[2]) for event in stream.split("\n\n") if event.startswith("event")]


async def test_an_answer_that_is_no_response_fails_its_own_alone() -> None:
    placement = InProcess()
    async with running(placement=placement) as site:
        for answer in NONE_OF_THEM:
            made = (await asked(site, answer, JSON, background=True)).json()
            assert made["status"] == "queued"
            failed = await ended(site, made["id"])
            assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
            waited = await asked(site, answer, JSON)
            assert (waited.status_code, waited.content) == (200, answer.encode("latin-1"))
        for event in ("", 'data: {"response":"hi"}\n\n', 'data: {"response":1', *NONE_OF_THEM):
            followed = await asked(site, event, SSE, background=True, stream=True)
            *_, last = events_in(followed.text)
            assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
            assert (await ended(site, last["response"]["id"]))["status"] == "failed"
            assert (await asked(site, event, SSE, stream=True)).content == event.encode("latin-1")
        assert (await site.post(do="echo")).status_code == 200 and len(placement.started) == 1


async def test_events_are_no_part_of_what_a_request_goes_on_with() -> None:
    async with running(placement=InProcess(), max_request_size=20_000) as site:
        long = "x" * 11_000
        followed = await asked(site, COMPLETED, SSE, times=400, input=long, background=True, stream=True)
        assert len(followed.content) > 30_000
        response_id = events_in(followed.text)[0]["response"]["id"]
        assert (await asked(site, "{}", JSON, previous_response_id=response_id)).status_code == 200
        refused = await asked(site, "{}", JSON, previous_response_id=response_id, user=long)
        assert refused.status_code == 400 and "expected at most 20000 together" in refused.text


async def test_a_response_that_has_no_room_fails_and_leaves_room_for_others() -> None:
    async with running(placement=InProcess(), responses_max_bytes=20_000) as site:
        for _ in range(2):
            followed = await asked(site, COMPLETED, SSE, times=1_000, background=True, stream=True)
            *_, last = events_in(followed.text)
            assert last["type"] == "response.failed" and len(followed.content) < 50_000
            assert (await ended(site, last["response"]["id"]))["error"]["message"] == NO_ROOM
            made = (await asked(site, "x" * 100, JSON, times=1_000, background=True)).json()
            assert (await ended(site, made["id"]))["error"]["message"] == NO_ROOM
        assert await site.metric('djl_aborted_requests_total{model="m",reason="slow_reader"') == 4
        whole = await asked(site, COMPLETED, SSE, times=100, background=True, stream=True)
        assert (await ended(site, events_in(whole.text)[0]["response"]["id"]))["status"] == "completed"


async def test_nothing_is_held_of_a_response_that_is_over_but_what_is_kept() -> None:
    async with running(placement=InProcess()) as site:
        running_ones = site.front_end.responses.running
        made = (await asked(site, "hello", JSON, background=True)).json()
        await ended(site, made["id"])
        assert running_ones == {}
        order = {"input": "a", "do": "hang", "background": True}
        made = (await site.client.post("/v1/responses", json=order)).json()
        held = weakref.ref(running_ones[made["id"]])
        assert (await site.client.post(f"/v1/responses/{made['id']}/cancel")).json()["status"] == "cancelled"
        assert running_ones == {}
        await until(lambda: held() is None)
