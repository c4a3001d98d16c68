"""What the front end holds of bodies, and for how long."""

from __future__ import annotations

import asyncio

import httpx

from tests.server.harness import Site, model_config, running, until

HEAD = b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


async def echo(site: Site, size: int, sleep_s: float = 0) -> httpx.Response:
    """Ask with a body of so many bytes."""
    order = b'{"do": "echo", "sleep_s": %g}' % sleep_s
    return await site.client.post("/invocations", content=order.ljust(size))


async def test_more_than_may_be_held_is_refused_and_what_a_worker_has_does_not_count() -> None:
    async with running(model_config(properties={"capacity": "1"}), max_bodies_size=150_000) as site:
        bodies = site.front_end.bodies
        first = asyncio.create_task(echo(site, 100_000, sleep_s=0.5))
        await until(lambda: site.model.pool.in_flight == 1)
        assert bodies.held_bytes == 0
        waiting = asyncio.create_task(echo(site, 100_000))
        await until(lambda: site.model.pool.queued == 1)
        assert bodies.held_bytes == 100_000
        for path, status in (("/invocations", 503), ("/v1/chat/completions", 429)):
            refused = await site.client.post(path, content=b" " * 100_000)
            assert refused.status_code == status and refused.headers["retry-after"] == "1"
            assert "(max_bodies_size) are waiting already" in refused.text
        assert bodies.held_bytes == 100_000
        assert [answer.status_code for answer in await asyncio.gather(first, waiting)] == [200, 200]
        assert (await echo(site, 200_000)).status_code == 200  # one that is alone is never too much
        assert bodies.held_bytes == 0


async def test_a_disconnected_waiting_client_holds_no_body() -> None:
    async with running(model_config(properties={"capacity": "1"})) as site:
        first = asyncio.create_task(echo(site, 100, sleep_s=0.5))
        await until(lambda: site.model.pool.in_flight == 1)
        async with site.connect() as (_, writer):
            writer.write(HEAD % 2 + b"{}")
            await until(lambda: site.front_end.bodies.held_bytes == 2)
        await until(lambda: site.front_end.bodies.held_bytes == 0)
        assert (await first).status_code == 200


async def test_a_body_that_does_not_come_in_time_ends_its_connection() -> None:
    async with running(body_timeout_s=0.2) as site, site.connect() as (reader, writer):
        writer.write(HEAD % 100 + b"x" * 50)
        await until(lambda: site.front_end.bodies.held_bytes == 50)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert site.front_end.bodies.held_bytes == 0
        assert await site.metric('djl_requests_total{code="499"') == 1


async def test_a_connection_that_asks_nothing_is_closed_and_a_slow_answer_is_none() -> None:
    async with running(idle_timeout_s=0.3) as site, site.connect() as (reader, writer):
        body = b'{"do": "echo", "sleep_s": 0.6}'
        writer.write(HEAD % len(body) + body)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        await asyncio.wait_for(reader.read(), 5)
