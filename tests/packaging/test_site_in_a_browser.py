"""The site in Chromium: it asks no other host, scripts included, fits a phone, and is searched without a server."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.site import PAGES, gather, generate, in_navigation, sources

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]
#: As root in a container, and without what Chromium asks of its makers.
ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    gather(folder / PAGES, sources())
    handler = functools.partial(Quiet, directory=str(generate(folder)))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.mark.parametrize("size", SIZES)
def test_pages_are_complete_and_fit(browser: Any, url: str, size: str) -> None:
    page = browser.new_context(viewport=SIZES[size]).new_page()
    elsewhere: list[str] = []
    errors: list[str] = []
    page.on(
        "request", lambda request: None if request.url.startswith((url, "data:")) else elsewhere.append(request.url)
    )
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    wide = []
    for name in in_navigation():
        page.goto(url + (Path(name).with_suffix("").as_posix() + "/" if name != "index.md" else ""))
        page.wait_for_load_state("networkidle")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
    assert (elsewhere, errors, wide) == ([], [], [])


def test_pages_are_searched(browser: Any, url: str) -> None:
    page = browser.new_context(viewport=SIZES["desktop"]).new_page()
    page.goto(url)
    search = page.get_by_role("combobox").or_(page.get_by_placeholder("Search")).first
    for _ in range(30):  # the key is lost on a page whose script has not started yet
        page.keyboard.press("Control+k")
        with contextlib.suppress(playwright.TimeoutError):
            search.wait_for(state="visible", timeout=1000)
            break
    search.fill("job_queue_size")
    page.get_by_text("serving.properties: queue, batching and workers").first.click()
    page.wait_for_url("**/settings/**")
