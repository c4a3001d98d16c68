"""Answers that are fetched later, over real sockets and fake workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from djl_python.core.access.api_key import given_keys
from tests.server.harness import Site, model_config, running, until

LATER = {"x-synchronous": "false"}


async def ask(site: Site, headers: Mapping[str, str] = LATER, path: str = "/invocations", **order: Any) -> str:
    """The token under which an answer can be fetched."""
    answer = await site.client.post(path, json=order, headers=headers)
    assert (answer.status_code, answer.content) == (200, b""), answer.text
    token = answer.headers["x-next-token"]
    assert answer.headers["x-amzn-sagemaker-custom-attributes"] == f"x-next-token={token}"
    return token


async def poll(site: Site, token: str, path: str = "/invocations", **headers: str) -> httpx.Response:
    return await site.client.post(path, headers={"x-starting-token": token, **headers})


async def fetch(site: Site, token: str | None, most: int | None = None) -> tuple[list[int], bytes, httpx.Response]:
    """Poll to the end: the statuses, the whole body, and the last answer."""
    statuses, body = [], b""
    while token is not None:
        limit = {} if most is None else {"x-max-items": str(most)}
        answer = await poll(site, token, **limit)
        statuses.append(answer.status_code)
        body += answer.content
        token = answer.headers.get("x-next-token")
        if answer.status_code == 202:
            assert answer.content == b""
            await asyncio.sleep(0.01)
    return statuses, body, answer


@pytest.mark.parametrize(
    "headers", [LATER, {"X-Synchronous": "False"}, {"X-Amzn-SageMaker-Custom-Attributes": "a=b, x-synchronous=false"}]
)
async def test_a_whole_answer_is_fetched_once_it_is_there(headers: Mapping[str, str]) -> None:
    async with running() as site:
        token = await ask(site, headers, do="echo", sleep_s=0.1)
        assert (await poll(site, token)).status_code == 202
        statuses, body, answer = await fetch(site, token)
        assert statuses[-1] == 200 and answer.headers["content-type"] == "application/json"
        assert json.loads(body)["path"] == "/invocations"
        assert "x-next-token" not in answer.headers  # DJL's memory cache gives one for ever
        assert (await poll(site, token)).content == body  # a client may have lost it
        attributes = {"X-Amzn-SageMaker-Custom-Attributes": f"x-starting-token={token}"}
        assert (await site.client.post("/invocations", headers=attributes)).content == body


@pytest.mark.parametrize("most", [None, 1, 2])
async def test_a_stream_is_fetched_in_its_pieces(most: int | None) -> None:
    async with running() as site:
        token = await ask(site, path="/predictions/m", do="stream", n=5, gap_s=0.02)
        statuses, body, answer = await fetch(site, token, most)
        assert [json.loads(line)["n"] for line in body.splitlines()] == list(range(5))
        assert answer.headers["content-type"] == "application/jsonlines" and set(statuses) <= {200, 202}
        if most == 1:
            assert statuses.count(200) >= 5
            # A token is a place: what came before it can be had again.
            assert (await poll(site, token, **{"x-max-items": "1"})).content == body.splitlines(keepends=True)[0]


async def test_more_than_its_worker_may_be_ahead_is_taken() -> None:
    async with running() as site:
        token = await ask(site, do="flow", n=20, size=100_000, ahead=300_000)
        assert len((await fetch(site, token))[1]) == 2_000_000


async def test_a_deferred_failure_is_in_the_fetched_answer() -> None:
    async with running(model_config(option={"predict_timeout": 0.2})) as site:
        statuses, body, answer = await fetch(site, await ask(site, do="hang"))
        direct = await site.post(do="hang")
        assert statuses[-1] == direct.status_code >= 400 and json.loads(body) == direct.json()
        statuses, body, _ = await fetch(site, await ask(site, do="break"))
        assert statuses[-2:] == [200, 424] and body.startswith(b"a,b") and b"before it was complete" in body
        statuses, body, _ = await fetch(site, await ask(site, do="stream", n=2, gap_s=0.5))
        assert statuses[-1] == 200 and b"predict_timeout" in body.splitlines()[-1]
        statuses, _, answer = await fetch(site, await ask(site, do="headers", status=404, custom="yes"))
        assert (statuses[-1], answer.headers["custom"]) == (404, "yes")
        statuses, body, _ = await fetch(site, await ask(site, do="headers", status=204))
        assert (statuses[-1], body) == (204, b"")


async def test_a_worker_that_dies_fails_what_it_had_and_the_rest_is_answered_by_the_next() -> None:
    async with running(model_config(properties={"capacity": "1"})) as site:
        dying, waiting = await ask(site, do="die"), await ask(site, do="echo")
        statuses, body, _ = await fetch(site, dying)
        assert statuses[-1] >= 400 and b"worker" in body
        assert (await fetch(site, waiting))[0][-1] == 200


async def test_a_refused_deferred_request_is_answered_at_once() -> None:
    async with running(model_config(job_queue_size=1, properties={"capacity": "1"})) as site:
        token = await ask(site, do="echo", sleep_s=0.3)
        await ask(site, do="echo")
        refused = await site.client.post("/invocations", json={"do": "echo"}, headers=LATER)
        assert refused.status_code == 503 and "x-next-token" not in refused.headers
        missing = await site.client.post("/predictions/none", json={}, headers=LATER)
        assert missing.status_code == 404
        assert (await fetch(site, token))[0][-1] == 200


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"x-starting-token": "nonsense"}, "x-starting-token: nothing is held under this token"),
        ({"x-starting-token": "A" * 32 + "0"}, "x-starting-token: nothing is held under this token"),
        ({"x-starting-token": ""}, "x-starting-token: nothing is held under this token"),
    ],
)
async def test_a_token_that_is_none(headers: dict[str, str], says: str) -> None:
    async with running() as site:
        answer = await site.client.post("/invocations", headers=headers)
        assert answer.status_code == 400 and says in answer.json()["message"]


async def test_a_place_or_a_number_that_is_none() -> None:
    async with running() as site:
        token = await ask(site, do="echo")
        await fetch(site, token)
        assert (await poll(site, f"{token}9")).status_code == 400
        for most in ("0", "-1", "many"):
            answer = await poll(site, token, **{"x-max-items": most})
            assert answer.status_code == 400 and "x-max-items: expected an integer >= 1" in answer.json()["message"]


async def test_other_apis_have_no_tokens() -> None:
    async with running() as site:
        answer = await site.client.post("/v1/completions", json={"do": "echo"}, headers=LATER)
        assert "x-next-token" not in answer.headers and answer.json()["path"] == "/v1/completions"


async def test_complete_answers_give_way_and_incomplete_ones_do_not() -> None:
    async with running(memory_cache_capacity=2) as site:
        first, second = await ask(site, do="echo"), await ask(site, do="echo")
        await fetch(site, second)
        await fetch(site, first)  # the other was not asked for for longer
        third = await ask(site, do="hang")
        assert (await poll(site, second)).status_code == 400
        assert (await poll(site, first)).status_code == 200
        await ask(site, do="hang")
        refused = await site.client.post("/invocations", json={"do": "echo"}, headers=LATER)
        assert refused.status_code == 503 and "memory_cache_capacity" in refused.json()["message"]
        assert (await poll(site, third)).status_code == 202


async def test_bytes_are_bounded() -> None:
    async with running(memory_cache_bytes=300_000) as site:
        first = await ask(site, do="stream", n=1, size=200_000)
        assert len((await fetch(site, first))[1]) > 200_000
        second = await ask(site, do="stream", n=1, size=200_000)
        assert len((await fetch(site, second))[1]) > 200_000
        assert (await poll(site, first)).status_code == 400
        statuses, body, _ = await fetch(site, await ask(site, do="stream", n=10, size=100_000, gap_s=0.01))
        assert statuses[-1] == 503 and b"memory_cache_size" in body
        await until(lambda: site.model.pool.in_flight == 0)  # its worker was told
        third = await ask(site, do="stream", n=1, size=200_000)
        assert len((await fetch(site, third))[1]) > 200_000


def asking(secret: str) -> dict[str, str]:
    return LATER | {"authorization": f"Bearer {secret}"}


async def unknown(site: Site, token: str, secret: str) -> bool:
    return (await poll(site, token, authorization=f"Bearer {secret}")).status_code == 400


@pytest.mark.parametrize("pieces", [1, 2])
async def test_an_answer_whose_last_piece_has_no_room_says_so(pieces: int) -> None:
    async with running(memory_cache_bytes=300_000) as site:
        order: Any = {"do": "bytes", "answer": "x" * (400_000 // pieces), "kind": "text/plain", "times": pieces}
        _, _, answer = await fetch(site, await ask(site, **order))
        assert answer.status_code == 503 and b"memory_cache_size" in answer.content
        direct = await site.post(**order)
        assert (direct.status_code, len(direct.content)) == (200, 400_000)
        kept = await ask(site, do="stream", n=1, size=200_000)  # there is room again
        assert len((await fetch(site, kept))[1]) > 200_000


async def test_a_keys_flood_drops_its_own_answers() -> None:
    async with running(memory_cache_capacity=4, given_keys=given_keys("ab")) as site:
        kept = [await ask(site, asking("a"), do="echo") for _ in range(2)]
        await until(lambda: site.model.pool.in_flight == 0)
        for _ in range(5):
            last = await ask(site, asking("b"), do="echo")
            await until(lambda: site.model.pool.in_flight == 0)
        assert [await unknown(site, token, "a") for token in kept] == [False, False]
        assert not await unknown(site, last, "b")


async def test_a_key_waits_for_no_more_answers_than_it_leaves_to_others() -> None:
    async with running(memory_cache_capacity=4, given_keys=given_keys("ab")) as site:
        for _ in range(2):
            await ask(site, asking("a"), do="hang")
        refused = await site.client.post("/invocations", json={"do": "echo"}, headers=asking("a"))
        assert refused.status_code == 503 and "as much as is left for others" in refused.json()["message"]
        await ask(site, asking("b"), do="hang")


async def test_the_bytes_of_a_keys_answers_leave_as_many_to_others() -> None:
    async with running(memory_cache_bytes=300_000, given_keys=given_keys("ab")) as site:
        large = await ask(site, asking("a"), do="stream", n=10, size=40_000, gap_s=0.01)
        await until(lambda: site.model.pool.in_flight == 0)
        end = await poll(site, large, authorization="Bearer a")
        assert end.status_code == 503 and b"as much as is left for others" in end.content
        small = await ask(site, asking("b"), do="stream", n=1, size=100_000)
        await until(lambda: site.model.pool.in_flight == 0)
        assert len((await poll(site, small, authorization="Bearer b")).content) > 100_000


async def test_a_complete_answer_expires() -> None:
    async with running(memory_cache_expiration_s=0.05) as site:
        token = await ask(site, do="echo", sleep_s=0.2)  # longer than a complete one is held
        await until(lambda: site.model.pool.busy == 0)
        await until(lambda: site.front_end.deferred.unfetched == 0)
        assert (await poll(site, token)).status_code == 400


async def test_bodies_are_let_go() -> None:
    async with running(model_config(properties={"capacity": "1"})) as site:
        tokens = [await ask(site, do="echo", sleep_s=0.1) for _ in range(3)]
        assert site.front_end.bodies.held_bytes > 0  # those that no worker has
        for token in tokens:
            await fetch(site, token)
        assert site.front_end.bodies.held_bytes == 0


async def test_a_server_that_ends_says_what_was_not_fetched() -> None:
    async with running() as site:
        token = await ask(site, do="echo")
        await until(lambda: site.model.pool.busy == 0)
        assert site.front_end.deferred.unfetched == 1
        site.front_end.draining.begun = True
        assert (await poll(site, token)).status_code == 200
        assert site.front_end.deferred.unfetched == 0
