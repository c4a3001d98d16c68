"""The console in a real Chromium, over a real server whose engine echoes; nothing of it needs a mouse."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from djl_python.testing import RunningServer, running_server
from tests.server.console.conftest import FAINT, NAMELESS, Visit, shows_none, shows_one

Visits = Callable[..., Visit]
VIEWS = ("models", "charts", "playground", "log", "settings")
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True}


@contextlib.contextmanager
def load(server: RunningServer) -> Iterator[None]:
    """Requests, one after the other, until the block ends."""
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=30, verify=False) as client:
            while not over.is_set():
                client.post("/v1/completions", json={"model": "echo", "prompt": "again", "max_tokens": 20})

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_chat_streams(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("playground")
    page.get_by_label("Model", exact=True).select_option("echo")
    page.evaluate("""() => {
        window.lengths = new Set();
        const text = () => document.querySelector(".entry.assistant .text")?.textContent ?? "";
        const look = () => window.lengths.add(text().length);
        new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true});
    }""")
    page.get_by_label("System prompt", exact=True).fill("Echo. ")
    page.get_by_label("max_tokens", exact=True).fill("28")
    page.get_by_label("Message", exact=True).fill("Every word comes back.")
    page.get_by_label("Message", exact=True).press("Enter")
    page.locator(".said[data-running=false] .timing").wait_for()
    assert page.locator(".entry.user .text").text_content() == "Every word comes back."
    assert page.locator(".entry.assistant .text").text_content() == "Echo. Every word comes back."
    assert len(page.evaluate("[...window.lengths]")) > 3  # none, parts of it, the whole text
    assert page.get_by_label("Message", exact=True).input_value() == ""
    page.get_by_label("Message", exact=True).fill(" Twice.")
    page.get_by_label("max_tokens", exact=True).fill("63")
    page.get_by_label("Message", exact=True).press("Enter")
    page.locator(".said[data-running=false] .timing").nth(1).wait_for()
    said = "Echo. Every word comes back.Echo. Every word comes back. Twice."
    assert page.locator(".entry.assistant .text").nth(1).text_content() == said


@pytest.mark.slow
def test_an_answer_can_be_stopped(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("playground")
    page.get_by_label("Model", exact=True).select_option("echo")
    page.get_by_label("Completion", exact=True).check()
    page.get_by_label("Prompt", exact=True).fill("on and on")
    page.get_by_label("max_tokens", exact=True).fill("2000")
    page.get_by_role("button", name="Complete").click()
    page.locator(".entry.assistant").get_by_text("on and on").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Complete").wait_for()
    assert len(page.locator(".entry.assistant .text").text_content() or "") < 2000
    shows_none(page.get_by_role("alert"))


@pytest.mark.slow
def test_what_is_wrong_with_a_request_is_said(server: RunningServer, visit: Visits) -> None:
    visiting = visit(server.url)
    visiting.expected = {400, 404, 422, 424, 500}
    page = visiting.open("playground")
    page.get_by_label("Model", exact=True).select_option("echo")
    page.get_by_label("Message", exact=True).fill("hello")
    page.get_by_label("temperature", exact=True).fill("9")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("alert").get_by_text("temperature").wait_for()
    shows_none(page.locator(".entry.assistant"))
    page.get_by_label("temperature", exact=True).fill("")
    page.get_by_text("Tools and JSON schema").click()
    page.get_by_label("Tools, as OpenAI has them").fill("[{")
    page.get_by_role("alert").get_by_text("expected JSON").wait_for()


@pytest.mark.slow
def test_every_parameter_of_the_api_has_a_control(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("playground")
    schemas = httpx.get(f"{server.url}/openapi.json", verify=False).json()["components"]["schemas"]
    page.get_by_label("Model", exact=True).select_option("echo")
    for mode, schema, own in (
        ("Chat", "ChatRequest", {"messages", "tools", "top_logprobs"}),
        ("Completion", "CompletionRequest", {"prompt"}),
    ):
        page.get_by_label(mode, exact=True).check()
        page.wait_for_selector(".options details")
        controls = page.eval_on_selector_all(".options [name]", "all => all.map((one) => one.name)")
        own = own | {"model", "stream", "stream_options", "logprobs", "response_format"}
        assert set(controls) - {"stream", "tokens", "tools", "schema"} == set(schemas[schema]["properties"]) - own


def test_charts_move_under_load(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("charts")
    tokens = page.locator("[data-chart='Generated tokens']")
    page.get_by_label("Model", exact=True).select_option("echo")
    tokens.locator("canvas").wait_for()
    still = tokens.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    with load(server):
        for title in ("Generated tokens", "Requests", "Requests at a time", "Time to first token", "Between tokens"):
            page.wait_for_function(
                """title => Number(document.querySelector(`[data-chart="${title}"] .legend b`).textContent
                    .replace(",", "")) > 0""",
                arg=title,
            )
        assert tokens.locator("canvas").evaluate("canvas => canvas.toDataURL()") != still
        label = tokens.get_by_role("img").get_attribute("aria-label") or ""
        assert label.startswith("Generated tokens, per second: tokens ")
        tokens.get_by_text("As a table").click()
        assert tokens.get_by_role("row").count() > 2


@pytest.mark.slow
def test_percentiles_are_those_of_prometheus(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open()
    text = "\n".join(
        [
            "# TYPE djl_x_bucket histogram",
            *(f'djl_x_bucket{{le="{le}",model="a \\"b\\"",version=""}} {n}' for le, n in (("0.1", 4), ("0.5", 8))),
            'djl_x_bucket{le="+Inf",model="a \\"b\\"",version=""} 10',
        ]
    )
    found = page.evaluate(
        """async (text) => {
            const url = new URL("console/metrics.js", document.baseURI).href;
            const {TOGETHER, byModel, parse, quantile} = await import(url);
            const models = byModel(parse(text));
            const after = models.get('a "b"').x_bucket;
            const before = new Map([[0.1, 4], [0.5, 4], [Infinity, 4]]);
            return [quantile(0.5, null, after), quantile(0.2, null, after), quantile(0.95, null, after),
                    quantile(0.5, before, after), quantile(0.5, after, after),
                    [...models.get(TOGETHER).x_bucket.values()].join()];
        }""",
        text,
    )
    assert found[:-1] == pytest.approx([0.2, 0.05, 0.5, 0.4, None])
    assert found[-1] == "4,8,10"


@pytest.mark.slow
def test_settings_say_where_their_values_come_from(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("models")
    page.get_by_role("link", name="Settings of echo").click()
    row = page.get_by_role("row", name="option.rolling_batch")
    assert "serving.properties:2" in row.inner_text()
    shows_none(page.get_by_role("row", name="option.dtype"))
    page.get_by_label("also those that have their default").check()
    assert "default" in page.get_by_role("row", name="option.dtype").inner_text()
    page.get_by_label("Settings of", exact=True).select_option("the server")
    assert "command line" in page.get_by_role("row", name="inference_address").inner_text()


@pytest.mark.slow
def test_the_log_shows_what_workers_say(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("log")
    page.get_by_role("log").get_by_text("echo/0").first.wait_for()
    httpx.post(f"{server.url}/predictions/plain", content=b"x", verify=False)
    page.get_by_role("log").get_by_text('"POST /predictions/plain"').first.wait_for()
    page.get_by_label("Find", exact=True).fill("no record has this")
    page.get_by_text("No record has that.").wait_for()


def test_the_level_of_the_log_is_that_of_workers_too(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("log")
    level = page.get_by_label("The server logs", exact=True)
    page.wait_for_function("document.querySelector('.bar select').value === 'info'")
    with page.expect_response("**/server/logging*"):
        level.select_option("debug")
    try:
        httpx.post(f"{server.url}/predictions/plain", content=b"x", verify=False)
        page.get_by_role("log").get_by_text("it was asked").first.wait_for()
    finally:
        level.select_option("info")
    page.get_by_label("Shown here", exact=True).select_option("WARNING")
    page.get_by_text("No record has that.").wait_for()


def test_a_server_that_does_not_answer_and_comes_back(server: RunningServer, visit: Visits) -> None:
    visiting = visit(server.url)
    visiting.expected_texts = ("ERR_INTERNET_DISCONNECTED",)
    page = visiting.open("models")
    views = ("charts", "log", "playground", "settings")
    page.context.set_offline(True)
    for view in views:
        page.evaluate("view => { location.hash = view; }", view)
        page.get_by_role("alert").get_by_text("The server does not answer.").wait_for()
        shows_one(page.get_by_role("alert"))
    page.context.set_offline(False)
    page.get_by_role("alert").wait_for(state="detached")
    page.get_by_role("row", name="inference_address").wait_for()
    for view in views:
        visiting.open(view)
        shows_none(page.get_by_role("alert"))


def test_a_chat_goes_on_while_one_looks_elsewhere(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("playground")
    page.get_by_label("Model", exact=True).select_option("echo")
    page.get_by_label("max_tokens", exact=True).fill("60")
    page.get_by_label("Message", exact=True).fill("again and ")
    page.get_by_role("button", name="Send").click()
    page.locator(".entry.assistant .text").wait_for()
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_role("article", name="echo").wait_for()
    page.get_by_role("link", name="Playground").click()
    page.locator(".said[data-running=false] .timing").get_by_text("60 tokens").wait_for()
    assert page.locator(".entry.assistant .text").text_content() == 6 * "again and "
    page.get_by_label("max_tokens", exact=True).fill("10")
    page.get_by_role("button", name="Ask again").click()
    page.locator(".said[data-running=false] .timing").get_by_text("10 tokens").wait_for()
    assert page.locator(".entry.assistant .text").all_text_contents() == ["again and "]


@pytest.mark.slow
def test_whoever_does_not_manage_looks_only(echo: Path, plain: Path, visit: Visits) -> None:
    """At the address for inference, and models do not answer at the other one."""
    with running_server("-m", str(plain), environment={"SERVING_MANAGEMENT_ADDRESS": "http://127.0.0.1:0"}) as server:
        looking = visit(server.url)
        page = looking.open()
        page.get_by_text("Read-only: models are managed at").wait_for()
        shows_none(page.get_by_role("button"))
        assert page.get_by_role("navigation").inner_text().split() == ["Models", "Charts", "Playground", "API"]
        where = server.output().partition("models are managed at ")[2].split()[0]
        looking.close()
        managing = visit(where)
        page = managing.open("playground")
        page.get_by_text("Models answer at http").wait_for()
        shows_one(page.get_by_role("link", name="Log"))
        managing.close()


@pytest.mark.slow
@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable(server: RunningServer, visit: Visits, scheme: str, size: str) -> None:
    """Contrast, names of controls, and nothing wider than the screen."""
    visiting = visit(server.url, color_scheme=scheme, **(PHONE if size == "phone" else {}))
    for view in VIEWS:
        page = visiting.open(view)
        page.wait_for_selector(".view:not([hidden]) > :nth-child(2)")
        assert page.evaluate(FAINT) == []
        assert page.evaluate(NAMELESS) == []
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= page.evaluate("document.documentElement.clientWidth"), view
    visiting.shoot(f"echo-{scheme}-{size}")


@pytest.mark.slow
def test_the_api_reference(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).page
    page.goto(f"{server.url}/docs")
    page.get_by_text("openai", exact=True).click()
    page.get_by_text("/v1/completions", exact=True).click()
    page.get_by_role("button", name="Execute").wait_for()
