"""The console's pages as a client without a browser gets them: what is there, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest

from djl_python.config import settings_table
from djl_python.server.console.pages import CONSOLE_ROUTES
from tests.server.harness import Site, model_config, running, wait_ready
from tests.server.in_process import InProcess

FROM_ELSEWHERE = {"x-forwarded-for": "10.0.0.1"}


async def get(site: Site, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
    return await site.client.get(path, headers=headers)


async def state(site: Site, headers: Mapping[str, str] | None = None) -> Any:
    return (await get(site, "/console/state", headers)).json()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/console", "text/html; charset=utf-8"),
        ("/docs", "text/html; charset=utf-8"),
        ("/console/style.css", "text/css; charset=utf-8"),
        ("/console/vendor/preact.mjs", "text/javascript; charset=utf-8"),
        ("/console/favicon.svg", "image/svg+xml"),
    ],
)
async def test_files(path: str, kind: str) -> None:
    async with running(placement=InProcess()) as site:
        answer = await get(site, path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
        kept = await get(site, path, {"if-none-match": answer.headers["etag"]})
        assert (kept.status_code, kept.content) == (304, b"")
        assert (await site.client.head(path)).headers["etag"] == answer.headers["etag"]


@pytest.mark.parametrize("path", ["/console", "/docs"])
async def test_a_page_with_a_slash_behind_it_sends_browsers_to_the_page(path: str) -> None:
    async with running(placement=InProcess()) as site:
        sent = await get(site, f"{path}/")
        assert (sent.status_code, sent.content) == (308, b"")
        assert sent.url.join(sent.headers["location"]).path == path


BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


async def test_the_root_leads_browsers_to_the_console_and_tells_programs_of_health() -> None:
    async with running(placement=InProcess()) as site:
        sent = await get(site, "/", BROWSER)
        assert (sent.status_code, sent.content, sent.headers["vary"]) == (303, b"", "Accept")
        assert sent.url.join(sent.headers["location"]).path == "/console"
        assert (await site.client.head("/", headers=BROWSER)).status_code == 303
        for accept in ("*/*", "application/json", "text/*"):
            assert (await get(site, "/", {"accept": accept})).status_code == 200
        assert (await get(site, "/health", BROWSER)).status_code == 200


async def test_a_missing_file_of_the_console_is_a_404() -> None:
    async with running(placement=InProcess()) as site:
        for path in ("/console/none.js", "/console/vendor/none.js", "/console/vendor", "/console/..%2Fpages.py"):
            answer = await get(site, path)
            assert (answer.status_code, answer.json()["type"]) == (404, "ResourceNotFoundException"), path


async def test_the_state_is_that_of_the_models_and_their_workers() -> None:
    async with running(model_config("a"), model_config("b", "2", properties={"load": "fail"})) as site:
        for model in site.models.values():
            await wait_ready(model)
        assert (await get(site, "/console/state")).headers["content-type"] == "application/json"
        page = await state(site)
        assert (page["manages"], page["generates"], page["several"]) == (True, True, True)
        a, b = page["models"]
        assert (a["name"], a["status"], a["ready_workers"], a["all_workers"]) == ("a", "Healthy", 1, 1)
        assert [(one["name"], one["state"]) for one in a["operator"]["workers"]] == [("0", "ready")]
        assert a["operator"]["workers"][0]["pid"] == next(iter(site.registry.models)).workers.always[0].pid
        assert (b["version"], b["status"], b["ready_workers"]) == ("2", "FAILED", 0)
        assert "oops" in b["operator"]["failure"]


async def test_visitors_who_do_not_manage_see_no_paths_settings_or_log() -> None:
    async with running(placement=InProcess()) as site:
        page = await state(site, FROM_ELSEWHERE)
        assert (page["manages"], page["generates"]) == (False, True)
        assert page["models"][0]["operator"] is None
        for path in ("/console/settings", "/console/log"):
            refused = await get(site, path, FROM_ELSEWHERE)
            assert refused.status_code == 403
            assert "management_access=open" in refused.json()["message"]


async def test_the_console_manages_for_clients_of_the_management_api() -> None:
    async with running(management_access="open", placement=InProcess()) as site:
        assert (await state(site, FROM_ELSEWHERE))["manages"]
        refused = await site.client.get("/console/state", headers={"origin": "http://elsewhere.example"})
        assert refused.status_code == 403


async def test_settings_have_their_sources_and_no_secrets() -> None:
    config = msgspec.structs.replace(
        model_config("a", batch_size=3),
        properties={"api_key": "x-y-z"},
        provenance={"batch_size": "serving.properties:1", "option.api_key": "environment OPTION_API_KEY"},
    )
    async with running(config, placement=InProcess()) as site:
        answer = await get(site, "/console/settings")
        assert {"key": "console", "value": "true", "source": "default"} in answer.json()["server"]
        (model,) = answer.json()["models"]
        assert {"key": "batch_size", "value": "3", "source": "serving.properties:1"} in model["settings"]
        (passed_on,) = model["passed_on"]
        assert (passed_on["key"], passed_on["source"]) == ("option.api_key", "environment OPTION_API_KEY")
        assert "x-y-z" not in answer.text


async def test_a_handler_without_defaults_has_an_empty_page_of_defaults() -> None:
    async with running(model_config("a", "2"), placement=InProcess()) as site:
        assert (await get(site, "/console/defaults/a/2")).json() == {}
        for path in ("/console/defaults/a", "/console/defaults/b"):
            assert (await get(site, path)).status_code == 404


async def test_the_log_is_that_of_the_front_end_and_can_be_followed() -> None:
    async with running(placement=InProcess()) as site:
        lines = site.front_end.console.lines
        lines.add("2026-01-01T00:00:00Z INFO - one")
        lines.add("2026-01-01T00:00:00Z INFO - two")
        assert [one["text"][-3:] for one in (await get(site, "/console/log")).json()["records"]] == ["one", "two"]
        (last,) = (await get(site, "/console/log?after=1")).json()["records"]
        assert last == {"number": 2, "text": "2026-01-01T00:00:00Z INFO - two"}
        refused = await get(site, "/console/log?after=-1")
        assert refused.status_code == 400
        assert refused.json()["message"].startswith("after: expected an integer >= 0")


async def test_nothing_of_it_is_served_where_it_is_switched_off() -> None:
    async with running(console=False, placement=InProcess()) as site:
        for route in CONSOLE_ROUTES:
            assert (await get(site, route.path.replace("{file}", "app.js"))).status_code == 404
        assert (await get(site, "/", BROWSER)).status_code != 303
        assert b"/console" not in (await get(site, "/openapi.json")).content
        assert "| `console` |" in settings_table()
