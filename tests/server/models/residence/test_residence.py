"""Models that are loaded by requests, and unloaded when they are idle or when another needs their memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import ollama
import psutil
import pytest

from djl_python.config import ModelConfig, ModelSpec
from djl_python.core.access.api_key import ApiKey, digest
from djl_python.core.access.scopes import Scope
from djl_python.core.budgets import LARGE_BODY_BYTES
from djl_python.core.errors import ServingError
from djl_python.server.dispatch import early_stream
from djl_python.server.models.health import Health
from djl_python.server.models.residence.clock import SystemClock, Timer
from djl_python.server.models.residence.memory import PROCESSES_BYTES
from tests.server.harness import Site, model_config, running, until
from tests.server.in_process import InProcess
from tests.server.models.residence.set_clock import SetClock

#: Room for two models without weights.
TWO = int(2.5 * PROCESSES_BYTES)


def idle_after(name: str, seconds: float | None, **properties: str) -> ModelConfig:
    option = {} if seconds is None else {"idle_unload": seconds}
    return model_config(name, option=option, properties=properties)


class PromptClock(SystemClock):
    """Calls what is due before all that has its turn later, as some event loops do."""

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        due = when_s <= self.now()
        return asyncio.get_running_loop().call_soon(call) if due else super().call_at(when_s, call)


class Scene:
    """A server with fake workers, and its clock."""

    def __init__(self, site: Site, clock: SetClock, place: InProcess) -> None:
        self.site, self.clock, self.place = site, clock, place

    async def ask(self, name: str = "m", headers: dict[str, str] | None = None, **order: Any) -> httpx.Response:
        return await self.site.client.post(f"/predictions/{name}", json={"do": "echo", **order}, headers=headers)

    def health(self, name: str = "m") -> Health:
        return self.site.models[f"{name}:"].health

    @property
    def loaded(self) -> set[str]:
        return {model.config.name for model in self.site.registry.models if model.ready}

    @property
    def loads(self) -> list[str]:
        """The models whose workers were started, in order."""
        return [spec.config.name for spec, _ in self.place.started]

    async def unloaded(self, name: str = "m") -> None:
        """Wait until a model is unloaded, and its workers have ended."""
        await until(lambda: self.health(name) is Health.UNLOADED and not self.site.registry.busy((name, "")))


@contextlib.asynccontextmanager
async def scene(*configs: ModelConfig, **server: Any) -> AsyncIterator[Scene]:
    clock, place = SetClock(), InProcess()
    async with running(*configs, placement=place, clock=clock, **server) as site:
        yield Scene(site, clock, place)


# ------------------------------------------------------------------------------------ loaded by a request


async def test_pages_that_are_asked_for_together_share_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as on:
        measured: list[list[str]] = []
        go_on = threading.Event()

        def process_iter(attrs: list[str]) -> list[psutil.Process]:
            measured.append(attrs)
            go_on.wait(20)
            return []

        monkeypatch.setattr(psutil, "process_iter", process_iter)
        asking = [asyncio.create_task(on.site.client.get("/api/ps")) for _ in range(20)]
        await until(lambda: on.site.front_end.draining.doing == 20)
        asking.pop().cancel()  # the others go on waiting for it
        go_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200} and len(measured) == 1
        await on.site.client.get("/api/ps")
        assert len(measured) == 2


async def test_models_of_the_start_are_loaded_by_their_first_requests() -> None:
    async with scene(model_config("a"), model_config("b"), load_on_request=True) as on:
        assert on.loads == [] and on.health("a") is on.health("b") is Health.UNLOADED
        assert (await on.ask("b")).status_code == 200
        assert on.loads == ["b"] and on.health("a") is Health.UNLOADED and on.health("b") is Health.HEALTHY


async def test_first_requests_share_a_load() -> None:
    async with scene(idle_after("m", None, load="later"), load_on_request=True) as on:
        answers = await asyncio.gather(*(on.ask() for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200} and on.loads == ["m"]


async def test_a_failed_load_is_its_requests_error_and_the_next_request_tries_again() -> None:
    async with scene(load_on_request=True) as on:
        on.place.refusal = "there is no such device"
        refused = await on.ask()
        assert refused.status_code == 503 and "there is no such device" in refused.text
        assert int(refused.headers["retry-after"]) > 0
        (told,) = on.site.registry.describe("m")
        assert told.health is Health.UNLOADED and "there is no such device" in told.failure
        assert (await on.site.client.get("/ping")).status_code == 200
        on.place.refusal = ""
        assert (await on.ask()).status_code == 200
        assert on.site.registry.describe("m")[0].failure == ""


async def test_a_request_waits_no_longer_than_its_own_deadline() -> None:
    async with scene(idle_after("m", None, load="later"), load_on_request=True) as on:
        late = await on.ask(headers={"x-request-timeout": "0.05"})
        assert late.status_code == 503 and "after 0.05 s, which is the request's deadline" in late.text
        assert (await on.ask()).status_code == 200 and on.loads == ["m"]


async def test_as_many_requests_wait_for_a_load_as_the_queue_takes() -> None:
    config = model_config("m", properties={"load": "later"}, job_queue_size=2)
    async with scene(config, load_on_request=True) as on:
        codes = sorted(answer.status_code for answer in await asyncio.gather(*(on.ask() for _ in range(5))))
        assert codes == [200, 200, 503, 503, 503]


async def test_a_client_that_leaves_lets_the_load_go_on() -> None:
    async with scene(idle_after("m", None, load="later"), load_on_request=True) as on:
        leaving = asyncio.create_task(on.ask())
        await until(lambda: on.loads == ["m"])
        leaving.cancel()
        await until(lambda: on.health() is Health.HEALTHY)
        assert (await on.ask()).status_code == 200 and on.loads == ["m"]


async def test_a_client_that_leaves_while_a_model_loads_leaves_its_place_and_its_body_too() -> None:
    config = model_config("m", properties={"load": "never"}, job_queue_size=1)
    async with scene(config, load_on_request=True) as on:
        for _ in range(3):
            leaving = asyncio.create_task(on.ask(text="a" * 100_000))
            await until(lambda: on.loads == ["m"] and on.site.front_end.draining.doing == 1)
            assert (await on.ask()).status_code == 503  # the queue is full
            leaving.cancel()
            await until(lambda: on.site.front_end.draining.doing == 0)


@pytest.mark.parametrize("path", ["/invocations", "/v1/chat/completions"])
async def test_a_server_that_is_about_to_end_lets_no_request_wait_for_a_model(path: str) -> None:
    async with scene(model_config("m", properties={"load": "never"}), load_on_request=True) as on:
        waiting = asyncio.create_task(on.site.client.post(path, json={"do": "echo"}))
        await until(lambda: on.loads == ["m"] and on.site.front_end.draining.doing == 1)
        on.site.front_end.begin_draining()
        answer = await waiting
        assert answer.status_code == 503 and "the server is shutting down" in answer.text
        await on.site.front_end.draining.wait_done()


@pytest.mark.usefixtures("often")
async def test_a_stream_with_signs_of_life_ends_with_an_error_where_the_server_is_about_to_end() -> None:
    async with scene(model_config("m", properties={"load": "never"}), load_on_request=True) as on:
        body = {"do": "echo", "stream": True}
        async with on.site.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            pieces = answer.aiter_text()
            assert await anext(pieces) == ":\n\n"
            on.site.front_end.begin_draining()
            assert "the server is shutting down" in "".join([piece async for piece in pieces])
        await on.site.front_end.draining.wait_done()


async def test_a_model_that_is_unregistered_while_requests_wait_is_not_found() -> None:
    async with scene(idle_after("m", None, load="later"), model_config("b"), load_on_request=True) as on:
        waiting = asyncio.create_task(on.ask())
        await until(lambda: on.loads == ["m"])
        await on.site.registry.unregister("m")
        assert (await waiting).status_code == 404


# ------------------------------------------------------------------------------------ signs of life


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come often."""
    monkeypatch.setattr(early_stream, "KEEP_ALIVE_S", 0.05)


STREAMS = [("/v1/chat/completions", {"stream": True}), ("/generate_stream", {}), ("/v1/messages", {"stream": True})]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_a_stream_shows_signs_of_life_while_its_model_loads(path: str, body: dict[str, Any]) -> None:
    async with scene(idle_after("m", None, load="later"), load_on_request=True) as on:
        order = {"do": "stream", "kind": "sse", "n": 2, **body}
        answer = await on.site.client.post(path, json=order)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        signs, _, events = answer.text.partition("data: ")
        assert signs == ":\n\n" * (len(signs) // 3) and len(signs) >= 6
        assert [json.loads(event)["n"] for event in events.strip().split("\n\ndata: ")] == [0, 1]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_an_error_after_signs_of_life_is_an_event(path: str, body: dict[str, Any]) -> None:
    async with scene(idle_after("m", None, load="later"), load_on_request=True) as on:
        answer = await on.site.client.post(path, json={"do": "headers", "status": 400, **body})
        assert answer.status_code == 200 and answer.text.startswith(":\n\n")
        assert "data: body\n\n" in answer.text
        assert ("data: [DONE]" in answer.text) == (path == "/v1/chat/completions")
        assert ("event: error\n" in answer.text) == (path == "/v1/messages")


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("path", "body"), STREAMS)
async def test_a_load_that_fails_after_signs_of_life_ends_the_stream(path: str, body: dict[str, Any]) -> None:
    config = model_config("m", option={"model_loading_timeout": 0.3}, properties={"load": "later"})
    async with scene(config, load_on_request=True) as on:
        answer = await on.site.client.post(path, json={"do": "echo", **body})
        assert answer.status_code == 200 and answer.text.startswith(":\n\n")
        assert "loading took longer than 0.3 s" in answer.text


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("how", ["jsonlines_chat", "model.py", "entryPoint"])
async def test_a_stream_that_will_not_be_of_events_waits(tmp_path: Path, how: str) -> None:
    option = {"jsonlines_chat": {"output_formatter": how}, "entryPoint": {"entry_point": "package.module"}}
    config = model_config("m", option=option.get(how), properties={"load": "later"})
    if how == "model.py":
        (tmp_path / how).touch()
        config = msgspec.structs.replace(config, path=str(tmp_path))
    async with scene(config, load_on_request=True) as on:
        answer = await on.site.client.post("/v1/chat/completions", json={"do": "stream", "n": 2, "stream": True})
        assert answer.headers["content-type"] == "application/jsonlines"
        assert [json.loads(line)["n"] for line in answer.text.splitlines()] == [0, 1]


@pytest.mark.usefixtures("often")
async def test_a_jsonlines_chat_models_completions_are_events() -> None:
    config = model_config("m", option={"output_formatter": "jsonlines_chat"}, properties={"load": "later"})
    async with scene(config, load_on_request=True) as on:
        body = {"do": "stream", "kind": "sse", "n": 1, "stream": True}
        assert (await on.site.client.post("/v1/completions", json=body)).text.startswith(":\n\n")


@pytest.mark.usefixtures("often")
async def test_an_answer_that_is_no_part_of_the_stream_that_has_begun_is_an_error_and_is_taken_in_full() -> None:
    """The model was reloaded with other settings, for example. The worker waits for its client to take each part."""
    async with scene(idle_after("m", None, load="later"), load_on_request=True) as on:
        body = {"do": "flow", "n": 8, "size": 100_000, "ahead": 200_000, "stream": True}
        answer = await on.site.client.post("/v1/chat/completions", json=body)
        error, done = answer.text.replace(":\n\n", "").strip().split("\n\n")
        told = json.loads(error.removeprefix("data: "))["error"]["message"]
        assert "answers with no content type: expected text/event-stream" in told and done == "data: [DONE]"


@pytest.mark.usefixtures("often")
async def test_answers_that_are_no_streams_wait() -> None:
    async with scene(idle_after("m", None, load="later"), load_on_request=True) as on:
        answer = await on.site.client.post("/v1/chat/completions", json={"do": "headers", "status": 400})
        assert answer.status_code == 400 and answer.text == "body"


# ------------------------------------------------------------------------------------ unloaded when idle


async def test_an_idle_model_is_unloaded_in_time_and_loaded_again() -> None:
    async with scene(idle_after("m", 300)) as on:
        on.clock.pass_(299)
        assert (await on.ask()).status_code == 200
        on.clock.pass_(299)  # its time begins anew with each request
        assert on.health() is Health.HEALTHY
        on.clock.pass_(1)
        await on.unloaded()
        assert on.site.model.workers.always == []
        assert (await on.ask()).status_code == 200 and on.loads == ["m", "m"]


async def test_counts_of_requests_and_the_time_of_registration_outlive_an_unloading() -> None:
    async with scene(idle_after("m", 10)) as on:
        await on.ask()
        before = on.site.model.status
        on.clock.pass_(10)
        await on.unloaded()
        await on.ask()
        after = on.site.model.status
        assert after.tally.succeeded == 2 and after.registered_s == before.registered_s


async def test_a_model_with_a_running_request_stays() -> None:
    async with scene(idle_after("m", 10)) as on:
        running_ = asyncio.create_task(on.ask(sleep_s=0.3))
        await until(lambda: on.site.model.pool.in_flight == 1)
        on.clock.pass_(1000)
        assert on.health() is Health.HEALTHY
        assert (await running_).status_code == 200
        on.clock.pass_(9)
        assert on.health() is Health.HEALTHY
        on.clock.pass_(1)
        await on.unloaded()


async def test_a_model_without_a_time_stays() -> None:
    async with scene() as on:
        await on.ask()
        on.clock.pass_(1e9)
        assert on.health() is Health.HEALTHY and not on.clock.waits


async def test_no_time_at_all_unloads_after_every_answer() -> None:
    async with scene(idle_after("m", 0), load_on_request=True) as on:
        for _ in range(2):
            answers = await asyncio.gather(on.ask(), on.ask())
            assert [answer.status_code for answer in answers] == [200, 200]
            on.clock.pass_(0)
            await on.unloaded()
        assert on.loads == ["m", "m"]


async def test_a_requests_time_holds_until_the_model_is_unloaded() -> None:
    async with scene(idle_after("m", 10)) as on:
        residence = on.site.registry.residence
        residence.keep(on.site.model, 100)
        on.clock.pass_(99)
        assert on.health() is Health.HEALTHY
        on.clock.pass_(1)
        await on.unloaded()
        await on.ask()
        on.clock.pass_(10)
        await on.unloaded()
        await on.ask()
        residence.keep(on.site.model, math.inf)
        on.clock.pass_(1e9)
        assert on.health() is Health.HEALTHY
        residence.keep(on.site.model, 0)
        on.clock.pass_(0)
        await on.unloaded()


# ------------------------------------------------------------------------------------ Ollama's keep_alive


async def generate(on: Scene, keep_alive: object, **body: str) -> httpx.Response:
    return await on.site.client.post("/api/generate", json={"do": "anything", "keep_alive": keep_alive, **body})


async def test_keep_alive_of_ollamas_api_says_how_long_the_model_stays() -> None:
    async with scene(idle_after("m", 10), model_config("b")) as on:
        assert (await generate(on, "1.5m", model="m", prompt="a")).status_code == 200
        on.clock.pass_(89)
        assert on.health() is Health.HEALTHY
        on.clock.pass_(1)
        await on.unloaded()
        padding = "x" * (2 << 20)
        assert (await generate(on, "-1s", model="m", prompt="a", pad=padding)).status_code == 200
        on.clock.pass_(1e9)
        assert on.health() is Health.HEALTHY


@pytest.mark.parametrize("keep_alive", [10**400, -(10**400), 1e308, "9" * 300 + "h", f"{10**18}h"])
async def test_any_number_is_a_keep_alive_and_has_a_date(keep_alive: object) -> None:
    async with scene(idle_after("m", 10), model_config("b")) as on:
        assert (await generate(on, keep_alive, model="m", prompt="a")).status_code == 200
        (shown,) = [one for one in (await on.site.client.get("/api/ps")).json()["models"] if one["name"] == "m:latest"]
        assert shown["expires_at"] > "2050"
        on.clock.pass_(1e8)
        assert on.health() is Health.HEALTHY


@pytest.mark.parametrize("size", [1, LARGE_BODY_BYTES + 1, 1 << 20])
async def test_keep_alive_0_unloads_after_the_answer_however_large_the_body_is(size: int) -> None:
    """A large body is searched for the field in turns; the model must not go before its pool has the call."""
    async with running(model_config("m"), model_config("b"), placement=InProcess(), clock=PromptClock()) as site:
        for _ in range(3):
            body = {"do": "anything", "model": "m", "prompt": "a", "pad": "x" * size}
            assert (await site.client.post("/api/generate", json=body)).status_code == 200
            answer = await site.client.post("/api/generate", json={**body, "keep_alive": 0})
            assert answer.status_code == 200, answer.text
            await until(lambda: site.models["m:"].health is Health.UNLOADED)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a" * LARGE_BODY_BYTES}),
        ("/v1/responses", {"input": "a", "background": True}),
    ],
    ids=["large", "background"],
)
async def test_a_model_stays_until_its_pool_has_the_call_of_a_request_that_takes_turns(
    path: str, body: dict[str, Any]
) -> None:
    """Its time of idleness is over at once."""
    configs = [idle_after("m", 0), model_config("b")]
    async with running(*configs, placement=InProcess(), clock=PromptClock()) as site:
        for _ in range(10):
            answer = await site.client.post(path, json={"do": "anything", "model": "m", **body})
            assert answer.status_code == 200, answer.text
            assert answer.json().get("status", "queued") == "queued"


async def test_keep_alive_0_without_a_prompt_unloads_and_loads_nothing() -> None:
    async with scene(model_config("m"), model_config("b"), load_on_request=True) as on:
        assert (await on.ask()).status_code == 200
        body = {"model": "m:latest", "keep_alive": 0}
        for path, nothing in (("/api/generate", body), ("/api/chat", {**body, "messages": []})):
            answer = await on.site.client.post(path, json=nothing)
            assert answer.json()["done_reason"] == "unload" and answer.json()["done"]
        on.clock.pass_(0)
        await on.unloaded()
        assert on.loads == ["m"]
        missing = await on.site.client.post("/api/generate", json={"model": "none", "keep_alive": 0})
        assert missing.status_code == 404


async def test_keep_alive_is_for_those_who_may_manage_models() -> None:
    """Others would wait for the model of whoever has it unloaded, or find no memory left by one that stays."""
    keys = [
        ApiKey(name=scope.value, sha256=digest(scope.value), scopes=(scope,)) for scope in (Scope.INFER, Scope.MANAGE)
    ]
    async with scene(idle_after("m", 300), given_keys=tuple(keys)) as on:

        async def asked(scope: Scope, **body: object) -> int:
            headers = {"authorization": f"Bearer {scope.value}"}
            return (
                await on.site.client.post("/api/generate", json={"do": "anything", **body}, headers=headers)
            ).status_code

        def expires_s() -> float | None:
            return on.site.front_end.view.models[0].expires_s

        for keep_alive in (0, -1, "1s"):
            assert await asked(Scope.INFER, prompt="a", keep_alive=keep_alive) == 200
            assert (expires_s() or 0) > time.time() + 200
        refused = await on.site.client.post(
            "/api/generate", json={"keep_alive": 0}, headers={"authorization": f"Bearer {Scope.INFER.value}"}
        )
        assert refused.status_code == 403 and "for those who may manage models" in refused.json()["error"]
        assert on.health() is Health.HEALTHY
        assert await asked(Scope.MANAGE, prompt="a", keep_alive=-1) == 200 and expires_s() is None
        assert await asked(Scope.MANAGE, keep_alive=0) == 200
        on.clock.pass_(0)
        await on.unloaded()


async def test_a_keep_alive_that_is_none_is_refused() -> None:
    async with scene() as on:
        values: list[object] = ["soon", "5", "", [], True, "5m "]
        for value in values:
            refused = await on.site.client.post("/api/generate", json={"prompt": "a", "keep_alive": value})
            assert refused.status_code == 400 and refused.json()["error"].startswith("keep_alive: expected seconds")


async def test_ollamas_client_copies_and_deletes_models() -> None:
    async with (
        scene(model_config("a"), model_config("b")) as on,
        ollama.AsyncClient(host=str(on.site.client.base_url)) as ollamas,
    ):
        await ollamas.copy("a", "c")
        assert on.health("c") is Health.UNLOADED
        assert (await on.ask("c")).status_code == 200 and on.loads.count("c") == 1
        with pytest.raises(ollama.ResponseError, match="is registered already"):
            await ollamas.copy("a", "b")
        with pytest.raises(ollama.ResponseError, match="can't be a model's name"):
            await ollamas.copy("a", "x y")
        await ollamas.delete("c:latest")
        assert "c:" not in on.site.models
        for missing in (ollamas.delete("c"), ollamas.copy("c", "d")):
            with pytest.raises(ollama.ResponseError, match="there is no model 'c'") as refused:
                await missing
            assert refused.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match="push: not served"):
            await ollamas.push("a")
        with pytest.raises(ollama.ResponseError, match="create: not served"):
            await ollamas.create("d", from_="a")


async def test_models_are_copied_and_deleted_by_those_who_manage_them_only() -> None:
    async with scene(model_config("a")) as on:
        elsewhere = {"x-forwarded-for": "192.0.2.1"}
        for method, path, body in (
            ("POST", "/api/copy", {"source": "a", "destination": "b"}),
            ("DELETE", "/api/delete", {"model": "a"}),
            ("POST", "/models/a/unload", {}),
        ):
            refused = await on.site.client.request(method, path, json=body, headers=elsewhere)
            assert refused.status_code == 403
        assert on.loaded == {"a"}


async def test_ps_says_until_when_a_model_stays() -> None:
    async with scene(idle_after("m", 300), model_config("b")) as on:
        expiries = {
            model["model"]: datetime.fromisoformat(model["expires_at"])
            for model in (await on.site.client.get("/api/ps")).json()["models"]
        }
        left_s = (expiries["m:latest"] - datetime.now(UTC)).total_seconds()
        assert 250 < left_s <= 300 and expiries["b:latest"].year > 2300


@pytest.mark.parametrize("seconds", [9.3e9, 1e12, 1e300])
@pytest.mark.parametrize("said_by", ["settings", "request"])
async def test_a_time_beyond_all_dates_is_for_ever(seconds: float, said_by: str) -> None:
    async with scene(idle_after("m", seconds if said_by == "settings" else 10)) as on:
        if said_by == "request":
            assert (await generate(on, seconds, prompt="a")).status_code == 200
        (shown,) = (await on.site.client.get("/api/ps")).json()["models"]
        assert shown["expires_at"].startswith("2318-")
        (told,) = (await on.site.client.get("/models/m")).json()
        assert "expiresAt" not in told["models"][0]
        assert not on.clock.waits
        on.clock.pass_(1e11)
        assert on.health() is Health.HEALTHY


@pytest.mark.parametrize("seconds", [1e9, 9.2e9])
async def test_the_longest_time_has_a_date(seconds: float) -> None:
    async with scene(idle_after("m", seconds)) as on:
        (shown,) = (await on.site.client.get("/api/ps")).json()["models"]
        (told,) = (await on.site.client.get("/models/m")).json()
        year = datetime.fromtimestamp(time.time() + seconds, UTC).year
        assert shown["expires_at"][:4] == told["models"][0]["expiresAt"][:4] == str(year)


# ------------------------------------------------------------------------------------ memory


async def test_the_model_that_was_used_longest_ago_makes_room() -> None:
    configs = [model_config(name) for name in ("a", "b", "c")]
    async with scene(*configs, load_on_request=True, memory_budget=TWO) as on:
        for name in ("a", "b", "a", "c"):
            on.clock.pass_(1)
            assert (await on.ask(name)).status_code == 200
        assert on.loaded == {"a", "c"} and on.loads == ["a", "b", "c"]
        assert 'djl_model_unloads_total{model="b",reason="memory",version=""} 1.0' in await metrics(on)


async def test_a_model_that_is_to_be_kept_makes_room_last() -> None:
    configs = [model_config(name) for name in ("a", "b", "c")]
    async with scene(*configs, load_on_request=True, memory_budget=TWO) as on:
        for name in ("a", "b"):
            on.clock.pass_(1)
            await on.ask(name)
        on.site.registry.residence.keep(on.site.models["a:"], math.inf)
        await on.ask("c")
        assert on.loaded == {"a", "c"}


async def test_a_load_waits_for_models_in_use() -> None:
    configs = [model_config(name) for name in ("a", "b")]
    async with scene(*configs, load_on_request=True, memory_budget=int(1.5 * PROCESSES_BYTES)) as on:
        first = asyncio.create_task(on.ask("a", sleep_s=0.3))
        await until(lambda: on.site.models["a:"].pool.in_flight == 1)
        second = asyncio.create_task(on.ask("b"))
        assert (await first).status_code == 200
        assert (await second).status_code == 200
        assert on.loaded == {"b"} and on.loads == ["a", "b"]


async def test_a_model_in_use_is_never_unloaded_for_another() -> None:
    configs = [model_config("a"), model_config("b", option={"model_loading_timeout": 0.2})]
    async with scene(*configs, load_on_request=True, memory_budget=int(1.5 * PROCESSES_BYTES)) as on:
        first = asyncio.create_task(on.ask("a", sleep_s=1.0))
        await until(lambda: on.site.models["a:"].pool.in_flight == 1)
        refused = await on.ask("b")
        assert refused.status_code == 503 and "memory_budget is 768 MiB" in refused.text
        assert (await first).status_code == 200 and on.loaded == {"a"}


async def test_a_model_that_can_never_fit_is_refused_and_others_stay() -> None:
    configs = [model_config("a"), model_config("big", min_workers=4)]
    async with scene(*configs, load_on_request=True, memory_budget=TWO) as on:
        await on.ask("a")
        refused = await on.ask("big")
        assert refused.status_code == 503
        assert "model 'big' needs about 2,048 MiB, and memory_budget is 1,280 MiB" in refused.text
        assert on.loaded == {"a"}


async def test_at_the_start_models_are_loaded_as_far_as_there_is_memory() -> None:
    async with scene(*(model_config(name) for name in ("a", "b", "c")), memory_budget=TWO) as on:
        assert len(on.loaded) == 2
        (left,) = {"a", "b", "c"} - on.loaded
        assert on.health(left) is Health.UNLOADED
        assert (await on.ask(left)).status_code == 200 and len(on.loaded) == 2


async def test_many_requests_for_more_models_than_fit_are_all_answered() -> None:
    names = ["a", "b", "c", "d"]
    async with scene(*map(model_config, names), load_on_request=True, memory_budget=TWO) as on:
        answers = await asyncio.gather(*(on.ask(name) for _ in range(5) for name in names))
        assert {answer.status_code for answer in answers} == {200}
        assert len(on.loaded) <= 2


@pytest.mark.parametrize(("room_for", "workers"), [(2, 2), (3, 3)])
async def test_spare_workers_are_started_as_far_as_there_is_memory(room_for: int, workers: int) -> None:
    """Waiting requests would have a model of one worker get two more."""
    config = model_config("a", properties={"capacity": "1"}, min_workers=1, max_workers=3)
    budget = int((room_for + 0.5) * PROCESSES_BYTES)
    async with scene(config, memory_budget=budget) as on:
        registry = on.site.registry
        asked = [asyncio.create_task(on.ask("a", sleep_s=0.2)) for _ in range(16)]
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
        assert on.loads == ["a"] * workers
        assert len(registry.models.select("a").workers) == workers


async def test_workers_that_a_manager_asks_for_unload_others_or_are_refused() -> None:
    async with scene(model_config("a"), model_config("b"), memory_budget=TWO) as on:
        assert on.loaded == {"a", "b"}
        await on.site.registry.scale("a", min_workers=2)
        assert on.loaded == {"a"} and len(on.site.models["a:"].workers) == 2
        refused = await on.site.client.put("/models/a?min_worker=3")
        assert refused.status_code == 503
        told = (
            "model 'a': another worker needs about 512 MiB beside its present workers, and memory_budget is 1,280 MiB"
        )
        assert told in refused.text
        assert len(on.site.models["a:"].workers) == 2
        assert (await on.ask("a")).status_code == 200
        await on.site.registry.scale("a", min_workers=1)
        assert (await on.ask("b")).status_code == 200 and on.loaded == {"a", "b"}


async def test_an_unloaded_model_needs_what_its_workers_need_when_it_is_loaded_again() -> None:
    async with scene(model_config("a"), model_config("b"), load_on_request=True, memory_budget=TWO) as on:
        await on.ask("a")
        await on.site.registry.release(("a", ""))
        await on.site.registry.scale("a", min_workers=2)
        await on.ask("b")
        assert (await on.ask("a")).status_code == 200 and on.loaded == {"a"}


# ------------------------------------------------------------------------------------ what is said of it


async def metrics(on: Scene) -> str:
    return (await on.site.client.get("/metrics")).text


async def test_an_unloaded_model_is_said_to_be_one() -> None:
    async with scene(idle_after("m", 10), model_config("b")) as on:
        client = on.site.client
        on.clock.pass_(10)
        await on.unloaded()
        assert (await client.get("/ping")).json()["m"] == {"status": "Unloaded"}
        assert (await client.get("/v2/health/ready")).status_code == 200
        assert (await client.get("/v2/models/m/ready")).status_code == 200  # it answers, once it is loaded
        index = {entry["name"]: entry for entry in (await client.post("/v2/repository/index")).json()}
        assert index["m"]["state"] == "UNAVAILABLE" and "until a request" in index["m"]["reason"]
        (told,) = (await client.get("/models/m")).json()
        assert told["models"][0]["status"] == "Unloaded" and told["models"][0]["workerGroups"] == []
        listed = {entry["modelName"]: entry["status"] for entry in (await client.get("/models")).json()["models"]}
        assert listed == {"m": "UNLOADED", "b": "READY"}
        console = {model["name"]: model for model in (await client.get("/console/state")).json()["models"]}
        assert console["m"]["status"] == "Unloaded"
        ps = (await client.get("/api/ps")).json()["models"]
        assert [model["model"] for model in ps] == ["b:latest"]
        text = await metrics(on)
        assert 'djl_model_loaded{model="m",version=""} 0.0' in text
        assert 'djl_model_loaded{model="b",version=""} 1.0' in text
        assert 'djl_model_unloads_total{model="m",reason="idle",version=""} 1.0' in text


# ------------------------------------------------------------------------------------ beside other operations


async def test_an_unloaded_model_is_loaded_by_a_reload_and_by_kserves_load() -> None:
    async with scene(load_on_request=True) as on:
        await on.site.registry.reload("m")
        assert on.health() is Health.HEALTHY
        assert await on.site.registry.release(("m", ""))
        assert on.health() is Health.UNLOADED
        assert (await on.site.client.post("/v2/repository/models/m/load")).status_code == 200
        assert on.health() is Health.HEALTHY


@pytest.mark.parametrize("load", ["reload", "/v2/repository/models/m/load", "/models/m/adapters?name=a&src=/a"])
async def test_requests_wait_for_a_load_that_another_operation_has_begun(load: str) -> None:
    async with scene(idle_after("m", None, load="later"), load_on_request=True) as on:
        beginning: asyncio.Future[Any] = (
            on.site.registry.reload("m") if load == "reload" else asyncio.ensure_future(on.site.client.post(load))
        )
        await until(lambda: on.loads == ["m"])
        asked = [asyncio.create_task(on.ask()) for _ in range(3)]
        assert [(await each).status_code for each in asked] == [200, 200, 200]
        beginning.cancel()  # fake workers answer nothing about adapters
        assert on.loads == ["m"]


async def test_requests_that_wait_for_a_load_of_kserves_get_its_error() -> None:
    config = model_config("m", option={"model_loading_timeout": 0.3}, properties={"load": "never"})
    async with scene(config, load_on_request=True) as on:
        loading = asyncio.create_task(on.site.client.post("/v2/repository/models/m/load"))
        await until(lambda: on.loads == ["m"])
        refused = await on.ask()
        assert refused.status_code == 503 and "took longer than 0.3 s" in refused.text
        assert (await loading).status_code >= 400 and on.loads == ["m"] and on.health() is Health.UNLOADED


@pytest.mark.parametrize("how", ["fail", "unreadable", "too large"])
async def test_a_reload_that_fails_leaves_an_unloaded_model_as_it_was(how: str) -> None:
    configs = [model_config("m"), model_config("b")]
    async with scene(*configs, load_on_request=True, memory_budget=TWO) as on:
        bad = model_config("m", properties={"load": how}, min_workers=4 if how == "too large" else 1)
        elsewhere = ModelSpec(name="m", url="/elsewhere")
        on.site.files.configs[elsewhere] = how if how == "unreadable" else bad
        with pytest.raises(ServingError) as failed:
            await on.site.registry.reload("m", spec=elsewhere)
        (told,) = on.site.registry.describe("m")
        assert (told.health, told.spec.url) == (Health.UNLOADED, "")
        assert told.reload_failure == failed.value.message
        assert (await on.site.client.get("/ping")).status_code == 200
        assert 'djl_model_loaded{model="m",version=""} 0.0' in await metrics(on)
        assert (await on.ask()).status_code == 200 and on.health() is Health.HEALTHY


async def test_a_number_of_workers_that_is_set_meanwhile_is_started() -> None:
    async with scene(load_on_request=True) as on:
        await on.site.registry.scale("m", min_workers=2)
        assert on.health() is Health.UNLOADED and on.loads == []
        await on.ask()
        assert on.loads == ["m", "m"]


async def test_requests_that_run_are_answered_before_a_release_ends_the_workers() -> None:
    async with scene() as on:
        running_ = asyncio.create_task(on.ask(sleep_s=0.3))
        await until(lambda: on.site.model.pool.in_flight == 1)
        assert await on.site.registry.release(("m", ""))
        assert (await running_).status_code == 200 and on.health() is Health.UNLOADED


async def test_a_request_that_comes_while_a_model_is_being_unloaded_is_answered_by_the_next_workers() -> None:
    async with scene() as on:
        running_ = asyncio.create_task(on.ask(sleep_s=0.3))
        await until(lambda: on.site.model.pool.in_flight == 1)
        released = on.site.registry.release(("m", ""))
        await until(lambda: on.health() is Health.UNLOADED)
        assert (await on.ask()).status_code == 200
        assert await released and (await running_).status_code == 200
        assert on.loads == ["m", "m"] and on.health() is Health.HEALTHY
