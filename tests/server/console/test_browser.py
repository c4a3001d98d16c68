"""The console in a real Chromium, over a real server whose engine echoes; nothing of it needs a mouse."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from djl_python.testing import RunningServer, running_server
from tests.server.console.conftest import BROKEN, FAINT, LONG, NAMELESS, Visit, shows_none, shows_one

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

Visits = Callable[..., Visit]
VIEWS = ("models", "charts", "playground", "log", "settings")
#: A number above zero.
RATE = re.compile("[1-9]")
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


def say(page: Page, text: str, max_tokens: int) -> Locator:
    """Ask echo, which says it again; returns the answer, which has ended."""
    page.get_by_label("Model", exact=True).select_option("echo")
    page.get_by_label("max_tokens", exact=True).fill(str(max_tokens))
    page.get_by_label("Message", exact=True).fill(text)
    answered = page.locator(".entry.assistant").count()
    page.get_by_role("button", name="Send").click()
    page.locator(".said[data-running=false] .timing").nth(answered).wait_for()
    return page.locator(".entry.assistant").nth(answered)


HOSTILE = """<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>

[a](javascript:document.title='owned') [b](http://127.0.0.1:9/) ![c](http://127.0.0.1:9/c.png) **bold**

| one | two |
|---|---|
| `three` | <b>four</b> |

```html
<script>five</script>
```
"""


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_an_answer_is_markdown_and_never_html(server: RunningServer, visit: Visits, size: str) -> None:
    visiting = visit(
        server.url, permissions=["clipboard-read", "clipboard-write"], **(PHONE if size == "phone" else {})
    )
    page = visiting.open("playground")
    answer = say(page, HOSTILE, len(HOSTILE))
    shows_none(answer.locator("img, script, b, iframe"))
    hrefs = answer.locator("a").evaluate_all("all => all.map((one) => one.href)")
    assert hrefs == ["http://127.0.0.1:9/", "http://127.0.0.1:9/c.png"]
    for shown in ("<img src=x onerror", "[a](javascript:", "<b>four</b>"):
        assert shown in (answer.text_content() or "")
    assert answer.locator("strong").text_content() == "bold"
    assert answer.locator("td code").text_content() == "three"
    assert answer.locator("pre").text_content() == "<script>five</script>"
    answer.get_by_role("button", name="Copy the code").click()
    answer.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "<script>five</script>"
    assert page.title() != "owned"
    assert page.evaluate(FAINT) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    visiting.shoot(f"markdown-{size}")


def test_conversations_outlive_a_reload(server: RunningServer, visit: Visits) -> None:
    visiting = visit(server.url)
    page = visiting.open("playground")
    say(page, "once", 4)
    page.get_by_label("System prompt", exact=True).fill("Echo. ")
    page.get_by_label("Message", exact=True).fill(" and again")
    page.reload()
    timing = page.locator(".entry.assistant .timing")
    assert "4 tokens for a prompt of 4" in (timing.text_content() or "")
    assert page.get_by_label("System prompt", exact=True).input_value() == "Echo. "
    assert page.get_by_label("Model", exact=True).input_value() == "echo"
    assert page.get_by_label("Message", exact=True).input_value() == " and again"
    page.get_by_label("max_tokens", exact=True).fill("3000")
    page.get_by_role("button", name="Send").click()
    page.locator(".entry.assistant .text").nth(1).wait_for()
    page.reload()  # while it answers: the question has what there was of its answer, or is the draft again
    page.get_by_label("Message", exact=True).wait_for()
    draft = page.get_by_label("Message", exact=True).input_value()
    asked = page.locator(".entry.user .text").all_text_contents()
    assert [*asked, draft] in (["once", " and again"], ["once", " and again", ""])
    assert page.locator(".entry.assistant .text").count() == len(asked)
    page.get_by_label("Completion", exact=True).check()
    page.get_by_label("Prompt", exact=True).fill("a completion")
    page.get_by_label("max_tokens", exact=True).fill("12")
    page.get_by_role("button", name="Complete").click()
    page.locator(".said[data-running=false] .timing").wait_for()
    page.reload()
    assert page.locator(".entry.assistant .text").text_content() == "a completion"
    page.get_by_label("Chat", exact=True).check()
    page.get_by_role("button", name="New chat").click()
    page.reload()
    page.get_by_label("Message", exact=True).wait_for()
    shows_none(page.locator(".entry"))


def test_a_large_message_is_not_kept(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("playground")
    page.get_by_label("Message", exact=True).fill("x" * 1_000_000)
    page.get_by_text("too large to be kept").wait_for()
    page.reload()
    page.get_by_label("Message", exact=True).wait_for()
    assert page.get_by_label("Message", exact=True).input_value() == ""


def test_markdown_that_is_nested_deeply_is_shown(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("playground")
    text = page.evaluate("""async () => {
        const { Markdown } = await import(new URL("console/markdown.js", document.baseURI).href);
        const { html, render } = await import(new URL("console/html.js", document.baseURI).href);
        return [">".repeat(20000), "- ".repeat(3000), "*a _b ".repeat(2000), "[".repeat(5000)].map((before) => {
            const place = document.createElement("div");
            render(html`<${Markdown} text=${before + " deep"} />`, place);
            return place.textContent.trim().slice(-4);
        });
    }""")
    assert text == ["deep"] * 4


@pytest.mark.slow
def test_cards_say_what_a_model_has_room_for(demo: RunningServer, visit: Visits) -> None:
    page = visit(demo.url).open("models")
    facts = page.get_by_role("article", name="demo").locator(".facts")
    facts.get_by_text("Weights").wait_for()
    shown = dict(line.split("\n") for line in facts.locator("div").all_inner_texts())
    context = httpx.get(f"{demo.url}/info", verify=False).json()["max_total_tokens"]
    assert shown["Context"] == f"{context:,} tokens"
    assert "MiB" in shown["Weights"] + shown["KV cache, at most"] or "GiB" in shown["KV cache, at most"]


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
def test_the_playground_shows_why_a_request_failed(server: RunningServer, visit: Visits) -> None:
    visiting = visit(server.url)
    visiting.expected = {400, 404, 422, 424, 500}
    page = visiting.open("playground")
    page.get_by_label("Model", exact=True).select_option("echo")
    page.get_by_label("Message", exact=True).fill("hello")
    page.get_by_label("temperature", exact=True).fill("9")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("alert").get_by_text("temperature").wait_for()
    shows_none(page.locator(".entry"))
    assert page.get_by_label("Message", exact=True).input_value() == "hello"
    page.get_by_label("temperature", exact=True).fill("")
    page.get_by_label("max_tokens", exact=True).fill("20")
    page.get_by_label("Message", exact=True).fill("another")
    page.get_by_role("button", name="Send").click()
    page.locator(".said[data-running=false] .timing").wait_for()
    assert page.locator(".entry.user .text").all_text_contents() == ["another"]
    assert "hello" not in (page.locator(".entry.assistant .text").text_content() or "")
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
        others = {"stream", "markdown", "tokens", "tools", "schema"}
        assert set(controls) - others == set(schemas[schema]["properties"]) - own


def test_parameters_show_what_the_model_has_without_them(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("playground")
    page.get_by_label("Model", exact=True).select_option("echo")
    for name, shown in (
        ("temperature", "0.6"),
        ("top_k", "20"),
        ("top_p", "1"),
        ("max_tokens", "all that fit"),
    ):
        page.locator(f"[name={name}][placeholder='{shown}']").wait_for()
    page.get_by_text("more parameters").click()
    chosen = page.get_by_label("skip_special_tokens", exact=True).locator("option:checked")
    assert chosen.text_content() == "unset: true"
    page.get_by_label("Completion", exact=True).check()
    page.locator("[name=max_tokens][placeholder='32']").wait_for()
    page.get_by_label("Model", exact=True).select_option("plain:2")  # a handler of its own: nobody knows
    page.get_by_label("Completion", exact=True).check()
    page.locator("[name=temperature]:not([placeholder])").wait_for()


def test_charts_move_under_load(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("charts")
    tokens = page.locator("[data-chart='Generated tokens']")
    page.get_by_label("Model", exact=True).select_option("echo")
    tokens.locator("canvas").wait_for()
    still = tokens.locator("canvas").evaluate("canvas => canvas.toDataURL()")
    with load(server):
        for title in (
            *("Generated tokens", "Requests", "In flight", "Time to first token", "Between tokens", "Processor"),
        ):
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


def test_charts_of_errors_queue_and_processes(server: RunningServer, visit: Visits) -> None:
    """Errors by the class of their status, of each model and of none; memory in its units, and as text."""
    page = visit(server.url).open("charts")
    page.wait_for_selector("[data-chart='Errors'] canvas")
    with httpx.Client(base_url=server.url, verify=False) as client:
        for _ in range(5):
            client.get("/nothing")
            client.post("/v1/completions", json={"model": "echo", "prompt": 1, "temperature": 9})
    errors = page.locator("[data-chart='Errors']")
    for name in ("echo", "no model"):
        errors.get_by_role("listitem").filter(has_text=name).locator("b", has_text=RATE).wait_for()
    page.get_by_label("Model", exact=True).select_option("echo")
    names = errors.locator(".legend .name").all_text_contents()
    assert names == ["4xx, refused", "5xx, failed", "no model"]
    names = page.locator("[data-chart='Queue'] .legend .name").all_text_contents()
    assert names == ["for a worker", "for the batch"]
    memory = page.locator("[data-chart='Memory']")
    text = memory.get_by_role("img").get_attribute("aria-label") or ""
    assert re.fullmatch(r"Memory, resident: workers [\d.,]+ [MG]iB, front end [\d.,]+ MiB", text)
    memory.get_by_text("As a table").click()
    assert "MiB" in memory.get_by_role("row").last.inner_text()
    processor = page.locator("[data-chart='Processor'] figcaption").inner_text()
    assert re.fullmatch(r"Processor cores in use, of \d+", processor)


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
    percentiles = page.evaluate(
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
    assert percentiles[:-1] == pytest.approx([0.2, 0.05, 0.5, 0.4, None])
    assert percentiles[-1] == "4,8,10"


@pytest.mark.slow
def test_settings_say_where_their_values_come_from(server: RunningServer, visit: Visits) -> None:
    page = visit(server.url).open("models")
    page.get_by_role("link", name="Settings of echo").click()
    row = page.get_by_role("row", name="option.rolling_batch")
    assert "serving.properties:2" in row.inner_text()
    shows_none(page.get_by_role("row", name="option.dtype"))
    page.get_by_label("show defaults too").check()
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


def test_records_of_one_model_are_shown_alone(server: RunningServer, visit: Visits) -> None:
    """Records of its workers and of the front end; in JSON as in text."""
    page = visit(server.url).open("log")
    httpx.get(f"{server.url}/nothing", verify=False)
    httpx.post(f"{server.url}/predictions/plain", content=b"x", verify=False)
    log = page.get_by_role("log")
    log.get_by_text('"POST /predictions/plain"').first.wait_for()
    names = page.get_by_label("Model", exact=True).locator("option").all_text_contents()
    assert names == ["all", "none: the server itself", "echo", "plain:2"]
    page.get_by_label("Model", exact=True).select_option("plain:2")
    words = {text.split()[2] for text in log.locator("div").all_text_contents()}
    assert "plain:2" in words and words <= {"plain:2", "plain:2/0"}
    page.get_by_label("Model", exact=True).select_option("-")
    assert {text.split()[2] for text in log.locator("div").all_text_contents()} == {"-"}
    read = page.evaluate("""async () => {
        const { read } = await import(new URL("console/log.js", document.baseURI).href);
        const heads = ["(2 records of this process are on stderr alone)\\n", ""];
        const texts = ['{"level": "ERROR", "name": "a/b/3/engine"}', "2026-01-01T00:00:00Z ERROR a/b/3 [x] why", "?"];
        return texts.flatMap((text) => heads.map((head) => read({ text: head + text })))
            .map(({ level, about }) => `${level} ${about}`);
    }""")
    assert read == [*4 * ["ERROR a/b"], *2 * ["INFO -"]]


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
    page.get_by_label("Markdown", exact=True).uncheck()
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
def test_visitors_who_do_not_manage_see_no_controls(echo: Path, plain: Path, visit: Visits) -> None:
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
def test_every_page_has_contrast_names_and_fits_the_screen(
    server: RunningServer, visit: Visits, scheme: str, size: str
) -> None:
    """Contrast, names of controls, and nothing wider than the screen."""
    visiting = visit(server.url, color_scheme=scheme, **(PHONE if size == "phone" else {}))
    for view in VIEWS:
        page = visiting.open(view)
        page.wait_for_selector(".view:not([hidden]) > :nth-child(2)")
        assert page.evaluate(FAINT) == []
        assert page.evaluate(NAMELESS) == []
        if view == "settings":
            page.get_by_label("Settings of", exact=True).select_option("echo")
            page.get_by_role("row", name="option.note").get_by_text(LONG).wait_for()
        if view == "charts":
            page.locator("[data-chart=Errors] summary").click()
            page.locator("[data-chart=Errors] td").first.wait_for()
        assert page.evaluate(BROKEN) == []
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= page.evaluate("document.documentElement.clientWidth"), view
    visiting.shoot(f"echo-{scheme}-{size}")


@pytest.mark.slow
def test_the_api_reference(demo: RunningServer, visit: Visits) -> None:
    page = visit(demo.url).page
    page.goto(f"{demo.url}/docs")
    page.get_by_text("openai", exact=True).click()
    page.get_by_text("/v1/completions", exact=True).click()
    page.get_by_text("OpenAI's API").wait_for()
    page.get_by_role("button", name="Execute").click()
    page.locator(".live-responses-table .response-col_status").get_by_text("200").wait_for()


@pytest.mark.slow
def test_examples_of_the_api_reference_name_one_of_several_models(server: RunningServer, visit: Visits) -> None:
    """In the body, the path or the query, wherever the API has it; what ends a model names none."""
    page = visit(server.url).page
    page.goto(f"{server.url}/docs")
    page.get_by_text("openai", exact=True).click()
    block = page.locator(".opblock-post", has=page.locator("[data-path='/v1/completions']"))
    block.locator(".opblock-summary-control").click()
    block.locator(".execute").click()
    block.locator(".live-responses-table .response-col_status").get_by_text("200").wait_for()
    assert json.loads(block.locator("textarea").first.input_value())["model"] == "echo"
    paths = page.evaluate("""async () => {
        const { withModels } = await import(new URL("console/examples.js", document.baseURI).href);
        const [openapi, state] = await Promise.all(["openapi.json", "console/state"].map(
            async (path) => (await fetch(path)).json()));
        return withModels(openapi, state).paths;
    }""")

    def named(method: str, path: str) -> dict[str, str]:
        examples = {one["name"]: one["example"] for one in paths[path][method]["parameters"] if "example" in one}
        return {name: value for name, value in examples.items() if name in ("model", "version", "model_name")}

    assert named("post", "/v2/models/{model}/infer") == {"model": "echo"}
    assert named("post", "/predictions/{model}/{version}") == {"model": "plain", "version": "2"}
    for path in ("/invocations", "/generate"):
        assert named("post", path) == {"model_name": "echo"}
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
        answer = httpx.post(f"{server.url}{path}", params=named("post", path), json=body, timeout=60, verify=False)
        assert answer.status_code == 200, answer.text
    assert named("delete", "/models/{model}") == named("post", "/v2/repository/models/{model}/unload") == {}
