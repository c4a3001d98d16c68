"""A real Chromium, and pages in it that note everything that goes wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

from djl_python.testing import FAKE_ENGINE, RunningServer, running_server, write_byte_tokenizer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

SCREENSHOTS: Final = Path(__file__).resolve().parents[3] / "build" / "console"
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
#: It asks nobody for updates, and does without what only a machine with a screen and a user has.
ARGUMENTS: Final = """
    --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update
    --disable-sync --disable-dev-shm-usage
""".split()
TEMPLATE: Final = "{% for message in messages %}{{ message.content }}{% endfor %}"
HANDLER: Final = """
import logging

from djl_python import Output


def handle(inputs):
    if inputs.is_empty():
        return None
    logging.getLogger("handler").debug("it was asked")
    return Output()
"""
#: A word that fits into no phone.
LONG: Final = "long" * 20
_WATCH = "addEventListener('securitypolicyviolation', (event) => console.error('policy: ' + event.violatedDirective))"

#: Texts whose contrast with what is behind them is below WCAG's 4.5, with the ratio.
FAINT: Final = """() => {
    const parts = (text) => {
        const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
        return [r, g, b, a];
    };
    const light = (colour) => {
        const [r, g, b] = colour.map((one) => one / 255).map(
            (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const colour = parts(getComputedStyle(one).backgroundColor);
            if (colour[3] === 1) return colour;
        }
        return [255, 255, 255, 1];
    };
    const found = [];
    for (const element of document.querySelectorAll("#app *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || element.closest(".unseen, .skip, :disabled") || !element.checkVisibility()) continue;
        const shades = [light(parts(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
        const ratio = (shades[0] + 0.05) / (shades[1] + 0.05);
        if (ratio < 4.5) found.push(`${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return found;
}"""
#: Words in cells of tables that are broken, and so are in several lines.
BROKEN: Final = """() => {
    const found = [];
    for (const cell of document.querySelectorAll("#app :is(td, th):not([colspan])")) {
        if (!cell.checkVisibility()) continue;
        const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        for (let text = texts.nextNode(); text; text = texts.nextNode()) {
            for (const { index, 0: word } of text.textContent.matchAll(/[^\\s\\-\\/]+/g)) {
                const range = document.createRange();
                range.setStart(text, index);
                range.setEnd(text, index + word.length);
                const lines = new Set([...range.getClientRects()].map(({ bottom }) => Math.round(bottom)));
                if (lines.size > 1) found.push(word);
            }
        }
    }
    return found;
}"""
#: Controls without a name for those who don't see them.
NAMELESS: Final = """() => [...document.querySelectorAll("button, input, select, textarea, a, summary")]
    .filter((one) => !(one.ariaLabel || one.labels?.length || one.textContent.trim())).map((one) => one.outerHTML)"""


def shows_one(locator: Locator) -> None:
    """Wait until there is one such element: the page follows the server with the delay of its polling."""
    _shows(locator, 1)


def shows_none(locator: Locator) -> None:
    """Wait until there is no such element."""
    _shows(locator, 0)


def _shows(locator: Locator, count: int) -> None:
    from playwright.sync_api import expect

    expect(locator).to_have_count(count, timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each module: as long as playwright's driver runs, no test in this process can have an event loop."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=executable, args=[*ARGUMENTS, *as_root])
        yield started
        started.close()


@dataclass
class Visit:
    """A page of a server's.

    Attributes:
        wrong: errors and warnings of the browser's console, exceptions, violations of the policy, other hosts.
        expected: statuses of answers that the browser may report as errors.
        expected_texts: parts of other errors that it may report.
    """

    url: str
    page: Page
    wrong: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)
    expected_texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.page.on("console", self._on_message)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._on_request)
        self.page.add_init_script(_WATCH)

    def open(self, view: str = "") -> Page:
        """The console, with the view of this name."""
        self.page.goto(f"{self.url}/console{view and '#'}{view}")
        self.page.wait_for_selector(".view:not([hidden]) h1")
        return self.page

    def close(self) -> None:
        """Leave the page, before its server ends; may be called again."""
        self.page.context.close()

    def shoot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def _on_message(self, message: ConsoleMessage) -> None:
        texts = [*self.expected_texts, *(f"status of {status}" for status in self.expected)]
        said = any(text in message.text for text in texts)
        if message.type in ("error", "warning") and not said:
            self.wrong.append(message.text)

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.url).netloc:
            self.wrong.append(f"a request to {request.url}")


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Makes a `Visit` of a server; options are those of the browser's context. In the end, nothing has gone wrong."""
    visits: list[Visit] = []

    def make(url: str, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(60_000)  # pages share processors with other tests
        visits.append(Visit(url, context.new_page()))
        return visits[-1]

    yield make
    for made in visits:
        made.close()
    assert [wrong for made in visits for wrong in made.wrong] == []


@pytest.fixture(scope="package")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_byte_tokenizer(tmp_path_factory.mktemp("models") / "echo")
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.6, "top_k": 20}')
    settings = (
        f"option.model_id={path}\noption.rolling_batch={FAKE_ENGINE}\noption.fake_step_ms=20\noption.note={LONG}\n"
    )
    (path / "serving.properties").write_text(settings)
    return path


@pytest.fixture(scope="package")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A handler, which loads at once."""
    path = tmp_path_factory.mktemp("models") / "plain"
    path.mkdir()
    (path / "model.py").write_text(HANDLER)
    return path


@pytest.fixture(scope="package")
def server(echo: Path, plain: Path) -> Iterator[RunningServer]:
    with running_server("-m", f"echo={echo}", "-m", f"plain:2={plain}") as running:
        yield running
