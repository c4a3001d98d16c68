"""The console and the API reference of a server that asks for keys, in a real Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from djl_python.core.access.api_key import ApiKey, digest
from djl_python.core.access.scopes import Scope
from djl_python.server.keys.key_file import add_key, remove_keys
from djl_python.testing import RunningServer, running_server
from tests.server.console.conftest import FAINT, NAMELESS, Visit, shows_none, shows_one

Visits = Callable[..., Visit]
SECRETS = {"reader": Scope.INFER, "operator": Scope.MANAGE}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    for name, scope in SECRETS.items():
        add_key(path, ApiKey(name=name, sha256=digest(f"djl_{name}"), scopes=(scope,)))
    return path


@pytest.fixture(scope="module")
def guarded(echo: Path, keys: Path) -> Iterator[RunningServer]:
    with running_server("-m", f"echo={echo}", environment={"SERVING_API_KEYS": str(keys)}) as running:
        yield running


def test_the_console_asks_for_a_key_and_keeps_it(guarded: RunningServer, keys: Path, visit: Visits) -> None:
    visiting = visit(guarded.url)
    visiting.expected = {401}
    page = visiting.page
    page.goto(f"{guarded.url}/console")
    field = page.get_by_label("Key", exact=True)
    field.wait_for()
    shows_none(page.get_by_role("alert"))
    visiting.shoot("key-asked")
    assert (page.evaluate(FAINT), page.evaluate(NAMELESS)) == ([], [])
    field.fill("djl_wrong")
    field.press("Enter")
    page.get_by_role("alert").get_by_text("Incorrect API key provided").wait_for()
    visiting.shoot("key-refused")
    field.fill("djl_reader")
    field.press("Enter")
    page.wait_for_selector(".view:not([hidden]) h1")
    shows_one(page.get_by_text("Read-only: the key reader has no scope manage."))
    visiting.shoot("key-of-a-reader")
    visiting.open("playground")
    page.reload()
    page.get_by_label("max_tokens", exact=True).fill("5")
    page.get_by_label("Message", exact=True).fill("hello")
    page.get_by_label("Message", exact=True).press("Enter")
    page.locator(".said[data-running=false] .timing").wait_for()
    assert page.locator(".entry.assistant .text").text_content() == "hello"

    page.get_by_role("button", name="Forget the key").click()
    field.wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    field.fill("djl_operator")
    field.press("Enter")
    page.get_by_role("link", name="Settings", exact=True).first.click()
    page.get_by_text("api_keys", exact=True).first.wait_for()
    shows_none(page.get_by_text("djl_operator"))
    visiting.shoot("key-of-an-operator")

    remove_keys(keys, lambda key: key.name == "operator")
    field.wait_for()  # the state is asked for every two seconds


def test_the_api_reference_sends_the_key(guarded: RunningServer, visit: Visits) -> None:
    visiting = visit(guarded.url)
    visiting.expected = {401}
    page = visiting.page
    page.goto(f"{guarded.url}/docs")
    page.get_by_role("button", name="Authorize").wait_for()
    page.evaluate("sessionStorage.setItem('djl-serving api key', 'djl_reader')")
    page.locator("#operations-tag-openai").click()
    page.locator("#operations-openai-get_v1_models").click()
    page.get_by_role("button", name="Execute").click()
    page.locator(".live-responses-table .response-col_status").get_by_text("200").wait_for()
    visiting.shoot("docs-with-key")
