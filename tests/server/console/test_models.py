"""The view of models in a real Chromium: what is said of them, and what can be done with them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from djl_python.testing import RunningServer
from tests.server.console.conftest import FAINT, HANDLER, Visit, shows_none, shows_one

Visits = Callable[..., Visit]
#: Loads in two steps; the second one takes until a file lies beside it.
GATED = """
import asyncio
from pathlib import Path

from djl_python.handler import Handler


class Gated(Handler):
    async def load(self, context):
        context.progress("loading weights", 3, 7)
        while not Path("open").exists():
            await asyncio.sleep(0.02)

    async def serve(self, inputs, reply):
        reply.start(200, {})
        reply.finish(b"{}")
"""


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    """A model that loads once its file `open` is there."""
    (tmp_path / "model.py").write_text(GATED)
    (tmp_path / "serving.properties").write_text("option.entryPoint=model:Gated\n")
    return tmp_path


@pytest.fixture
def managed(server: RunningServer) -> Iterator[Callable[..., httpx.Response]]:
    """Asks the management API. Models that come in a test are gone after it."""
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as client:
        before = listed(client)

        def ask(method: str, path: str, **parameters: str) -> httpx.Response:
            answer = client.request(method, path, params=parameters)
            answer.raise_for_status()
            return answer

        yield ask
        for name, version in listed(client) - before:
            ask("DELETE", f"/models/{quote(name, safe='')}", **({} if version else {"unversioned": "true"}))


def listed(client: httpx.Client) -> set[tuple[str, str]]:
    models = client.get("/models").json()["models"]
    return {(model["modelName"], model.get("version", "")) for model in models}


def card_of(page: Any, name: str) -> Any:
    return page.get_by_role("article", name=name, exact=True)


def test_how_far_a_model_is_that_loads(server: RunningServer, gated: Path, managed: Any, visit: Visits) -> None:
    page = visit(server.url, color_scheme="dark").open("models")
    page.get_by_text("Start a model").click()
    page.get_by_label("Path, URL or archive").fill(str(gated))
    page.get_by_label("Name", exact=True).fill("gated")
    page.get_by_role("button", name="Start", exact=True).click()
    card = card_of(page, "gated")
    card.get_by_text("loading weights 3/7").wait_for()
    assert card.get_by_role("progressbar", name="loading weights").get_attribute("value") == "3"
    shows_none(card.get_by_role("button", name="Scale"))
    (gated / "open").touch()
    card.get_by_text("healthy", exact=True).wait_for()
    shows_none(card.get_by_role("progressbar"))
    (gated / "open").unlink()
    card.get_by_role("button", name="Reload gated").click()
    successor = card.get_by_role("table", name="Workers that take over once all of them are ready")
    successor.get_by_text("loading weights 3/7").wait_for()
    shows_one(card.get_by_text("1 of 1"))
    shows_one(card.get_by_text("Reloading…"))
    shows_one(card.get_by_role("button", name="Reload gated", disabled=True))
    assert page.evaluate(FAINT) == []
    (gated / "open").touch()
    card.get_by_text('Model "gated" registered.').wait_for()
    shows_none(successor)


def test_a_model_is_started_with_its_number_formats(
    server: RunningServer, echo: Path, managed: Any, visit: Visits
) -> None:
    page = visit(server.url).open("models")
    page.get_by_text("Start a model").click()
    page.get_by_label("Path, URL or archive").fill(str(echo))
    page.get_by_label("Name", exact=True).fill("started")
    page.get_by_label("Number format").fill("fp32")
    page.get_by_role("button", name="Start", exact=True).click()
    card_of(page, "started").get_by_text("healthy", exact=True).wait_for()
    page.get_by_role("link", name="Settings of started").click()
    row = page.get_by_role("row", name="option.dtype").inner_text()
    assert "fp32" in row and "registration" in row


def test_why_a_worker_starts_again(server: RunningServer, gated: Path, managed: Any, visit: Visits) -> None:
    (gated / "open").touch()
    managed("POST", "/models", url=str(gated), model_name="killed")
    (gated / "open").unlink()
    (workflow,) = managed("GET", "/models/killed").json()
    os.kill(workflow["models"][0]["workerGroups"][0]["workers"][0]["pid"], signal.SIGKILL)
    card = card_of(visit(server.url).open("models"), "killed")
    card.get_by_text("The worker before it: was killed by SIGKILL").wait_for()
    card.get_by_text("loading weights 3/7").wait_for()
    (gated / "open").touch()
    card.get_by_text("healthy", exact=True).wait_for()
    shows_none(card.get_by_text("SIGKILL"))


def test_why_a_model_does_not_load(server: RunningServer, tmp_path: Path, managed: Any, visit: Visits) -> None:
    (tmp_path / "model.py").write_text("import nothing_of_this_name\n")
    page = visit(server.url).open("models")
    page.get_by_text("Start a model").click()
    for url, name, why in (
        (str(tmp_path), "broken", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        (str(tmp_path / "none"), "absent", "no such file or directory"),
    ):
        page.get_by_label("Path, URL or archive").fill(url)
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_role("button", name="Start", exact=True).click()
        card = card_of(page, name)
        card.get_by_text("It did not load.").wait_for()
        assert why in card.inner_text()
        if name == "broken":
            card.get_by_text("All of it").click()
            card.get_by_text("line 1, in <module>").wait_for()
            assert page.evaluate(FAINT) == []
        card.get_by_role("button", name=f"Remove {name}").click()
        page.get_by_role("dialog", name=f"Remove {name}?").get_by_role("button", name="Remove").click()
        page.get_by_text(f"{name} is stopped.").wait_for()
        shows_none(card)


def test_with_and_without_a_version_each_is_by_itself(
    server: RunningServer, plain: Path, managed: Any, visit: Visits
) -> None:
    managed("POST", "/models", url=str(plain), model_name="plain")
    page = visit(server.url).open("models")
    one, other = card_of(page, "plain"), card_of(page, "plain version 2")
    one.get_by_label("Workers, at most").fill("2")
    one.get_by_label("Workers, at least").fill("2")
    one.get_by_role("button", name="Scale").click()
    one.get_by_text("2 of 2").wait_for()
    shows_one(other.get_by_text("1 of 1"))
    one.get_by_role("button", name="Stop plain", exact=True).click()
    page.get_by_role("dialog", name="Stop plain?").get_by_role("button", name="Stop").click()
    page.get_by_text("plain is stopped.").wait_for()
    assert (one.count(), other.count()) == (0, 1)


def test_a_hostile_name_is_shown_as_text(server: RunningServer, plain: Path, managed: Any, visit: Visits) -> None:
    """Markup is text, and what would turn or hide a part of the text is an escape."""
    managed("POST", "/models", url=str(plain), model_name="<img~src=x>\u202eevil\x1b")
    visiting = visit(server.url)
    page = visiting.open("models")
    card_of(page, r"<img~src=x>\u202eevil\u001b").wait_for()
    for view in ("charts", "settings", "playground", "models"):
        page = visiting.open(view)
        page.get_by_text(r"<img~src=x>\u202eevil\u001b").first.wait_for(state="attached")
        shows_none(page.locator("#app main img"))


def test_a_reload_that_fails_shows_why_and_changes_nothing(server: RunningServer, plain: Path, visit: Visits) -> None:
    visiting = visit(server.url)
    visiting.expected = {500}
    page = visiting.open("models")
    (plain / "model.py").write_text("import nothing_of_this_name\n" + HANDLER)
    try:
        page.get_by_role("button", name="Reload plain:2").click()
        page.get_by_role("alert").get_by_text("No module named 'nothing_of_this_name'").first.wait_for()
    finally:
        (plain / "model.py").write_text(HANDLER)
    card = page.get_by_role("article", name="plain version 2")
    card.get_by_text("The last reload changed nothing.").wait_for()
    shows_one(card.get_by_text("1 of 1"))
    page.get_by_role("button", name="Reload plain:2").click()
    card.get_by_text('Model "plain" registered.').wait_for()
    card.get_by_text("The last reload changed nothing.").wait_for(state="detached")
    shows_none(page.get_by_role("alert"))


def press_until(page: Any, key: str, selector: str) -> None:
    """Press a key until what the selector names has the focus."""
    for _ in range(80):
        page.keyboard.press(key)
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{key} does not lead to {selector}")


def test_a_model_comes_is_scaled_and_goes_with_the_keyboard_alone(
    server: RunningServer, plain: Path, visit: Visits
) -> None:
    page = visit(server.url).open()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    press_until(page, "Tab", "summary")
    page.keyboard.press("Enter")
    press_until(page, "Tab", "input[name=url]")
    page.keyboard.type(str(plain))
    page.keyboard.press("Tab")
    page.keyboard.type("third")
    page.keyboard.press("Enter")
    card = page.get_by_role("article", name="third")
    card.wait_for()
    page.wait_for_function("document.activeElement.id === 'model/third/'")
    card.get_by_text("healthy", exact=True).wait_for()
    press_until(page, "Tab", "form[aria-label='Scale third'] input[aria-label='Workers, at most']")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    card.get_by_text("max workers:2").wait_for()
    press_until(page, "Shift+Tab", "button[aria-label='Stop third']")
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="Stop third?").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    shows_one(card)
    press_until(page, "Tab", "button[aria-label='Stop third']")
    page.keyboard.press("Enter")
    press_until(page, "Tab", "dialog .danger")
    page.keyboard.press("Enter")
    page.get_by_text("third is stopped.").wait_for()
    assert (card.count(), page.evaluate("document.activeElement.id")) == (0, "main")
    models = httpx.get(f"{server.url}/models", verify=False).json()["models"]
    assert [model["modelName"] for model in models] == ["echo", "plain"]
