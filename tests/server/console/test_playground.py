"""The playground with models that compute: tokens, schemas, tools, images, and the same requests elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from djl_python.testing import RunningServer, running_server
from tests.server.console.conftest import Visit, shows_none, shows_one
from tests.vision_checkpoints import build_vision_checkpoint, picture, png

pytestmark = pytest.mark.slow

Visits = Callable[..., Visit]
QUESTION = "What is deep learning?"
SCHEMA = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}},
    "required": ["sure"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"exact": {"type": "boolean"}}}},
}


def ask(page: Any, question: str, **parameters: str) -> str:
    """The text of the last answer to a question."""
    for name, value in parameters.items():
        page.get_by_label(name, exact=True).fill(value)
    page.locator("[name=prompt]").fill(question)
    page.locator(".composer .primary").click()
    page.locator(".said[data-running=false] .timing").last.wait_for()
    return str(page.locator(".entry.assistant").last.locator(".text").first.text_content())


def run(program: str, *command: str) -> str:
    done = subprocess.run([*command, program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def snippets(page: Any) -> dict[str, str]:
    """Each form of the request that is shown."""
    if page.locator(".snippets[open]").count() == 0:
        page.get_by_text("The same request as curl, Python or LMI").click()
    forms = {}
    for name in ("curl", "Python", "LMI"):
        page.get_by_label(name, exact=True).check()
        forms[name] = page.locator(".snippet").text_content()
    return forms


@pytest.mark.parametrize("streams", [True, False])
def test_a_chat_is_the_same_elsewhere(demo: RunningServer, visit: Visits, streams: bool) -> None:
    page = visit(demo.url).open("playground")
    page.get_by_label("stream", exact=True).set_checked(streams)
    page.get_by_label("Markdown", exact=True).uncheck()
    page.get_by_label("System prompt", exact=True).fill('It\'s you who "answers"\nbriefly.')
    text = ask(page, QUESTION, temperature="0", max_tokens="40", stop="patterns\nnobody")
    assert text.startswith("Deep learning is") and "patterns" not in text
    forms = snippets(page)
    assert run(forms["Python"], sys.executable, "-c").strip() == text.strip()
    for name in ("curl", "LMI"):
        assert said(run(forms[name], "sh", "-c")).strip() == text.strip(), name


@pytest.mark.parametrize("streams", [True, False])
def test_a_completion_is_the_same_elsewhere(demo: RunningServer, visit: Visits, streams: bool) -> None:
    page = visit(demo.url).open("playground")
    page.get_by_label("Completion", exact=True).check()
    page.get_by_label("stream", exact=True).set_checked(streams)
    page.get_by_text("more parameters").click()
    text = ask(page, QUESTION, temperature="0", min_p="0.1", seed="7", logit_bias='{"5": -1}')
    forms = snippets(page)
    assert "extra_body={" in forms["Python"]
    assert run(forms["Python"], sys.executable, "-c").strip() == text.strip()
    assert said(run(forms["curl"], "sh", "-c")) == text
    assert said(run(forms["LMI"], "sh", "-c")) == text
    shows_one(page.get_by_text("LMI has no logit_bias."))


def said(output: str) -> str:
    """The text of an answer that curl has printed: of OpenAI's or LMI's, streamed or not."""
    lines = [line.removeprefix("data:").strip() for line in output.splitlines()]
    objects = [json.loads(line) for line in lines if line and line != "[DONE]"]
    texts = []
    for one in objects:
        if "generated_text" in one and "token" not in one:
            texts.append(one["generated_text"])
        elif "token" in one:
            texts.append(one["token"]["text"])
        for choice in one.get("choices", []):
            part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            texts.append(part.get("content") or "")
    return "".join(texts)


def test_tokens_have_their_alternatives(demo: RunningServer, visit: Visits) -> None:
    for mode in ("Chat", "Completion"):
        page = visit(demo.url).open("playground")
        page.get_by_label(mode, exact=True).check()
        page.get_by_label("tokens and alternatives").check()
        page.get_by_label("how many").fill("3")
        text = ask(page, QUESTION, temperature="0", max_tokens="20")
        tokens = page.locator(".token").all_text_contents()
        assert "".join(tokens) == text
        rows = page.get_by_role("table", name="The token and its alternatives").get_by_role("row")
        assert rows.count() in (4, 5)  # the heading, three alternatives, and the token where it is none of them
        assert "␣learning" not in rows.nth(1).inner_text()
        page.locator(".token").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.locator(".token[aria-selected=true]").text_content() == tokens[1]
        page.keyboard.press("End")
        assert page.locator(".token:focus").text_content() == tokens[-1]
        probability = rows.nth(1).get_by_role("meter").get_attribute("value") or ""
        assert 0.1 < float(probability) <= 1


def test_several_answers_a_schema_and_tools(demo: RunningServer, visit: Visits) -> None:
    page = visit(demo.url).open("playground")
    page.get_by_text("Tools and JSON schema").click()
    page.get_by_label("JSON schema of the answer").fill(json.dumps(SCHEMA))
    ask(page, QUESTION, max_tokens="60", n="2", seed="1")
    answers = page.locator(".entry.assistant .text").all_text_contents()
    assert [set(json.loads(answer)) for answer in answers] == [{"sure"}, {"sure"}]
    page.get_by_role("button", name="New chat").click()
    shows_none(page.locator(".entry"))
    page.get_by_label("JSON schema of the answer").fill("")
    page.get_by_label("Tools, as OpenAI has them").fill(json.dumps([TOOL]))
    page.get_by_text("more parameters").click()
    page.get_by_label("n", exact=True).fill("")
    page.get_by_label("tool_choice", exact=True).fill("required")
    page.locator("[name=prompt]").fill(QUESTION)
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Tool call", exact=True).get_by_text("look_up(").wait_for()
    assert "name='look_up'" in run(snippets(page)["Python"], sys.executable, "-c")
    page.get_by_label("Result of look_up").fill("Nothing was found.")
    page.get_by_label("tool_choice", exact=True).fill("none")
    page.get_by_role("button", name="Send results").click()
    page.locator(".said[data-running=false] .timing").nth(1).wait_for()
    assert page.locator(".entry.tool .text").text_content() == "Nothing was found."
    assert '"role": "tool"' in snippets(page)["curl"]


def test_images_for_a_model_that_takes_them(tmp_path: Path, visit: Visits) -> None:
    checkpoint = tmp_path / "vision"
    build_vision_checkpoint(checkpoint, "llava")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "serving.properties").write_text(f"option.model_id={checkpoint}\noption.threads=1\n")
    image = tmp_path / "square.png"
    image.write_bytes(png(picture(24, 24)))
    with running_server("-m", f"sees={tmp_path / 'model'}") as server:
        visiting = visit(server.url)
        page = visiting.open("playground")
        page.get_by_label("Add images").set_input_files(image)
        page.get_by_alt_text("square.png").wait_for()
        ask(page, "What is this?", max_tokens="4", temperature="0")
        shows_one(page.locator(".entry.user").get_by_alt_text("square.png"))
        assert "data:image/png;base64," in snippets(page)["curl"]
        visiting.close()


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures(demo: RunningServer, visit: Visits, scheme: str, size: str) -> None:
    """Pictures of every view, to look at after a change (build/console); no view is wider than the screen."""
    viewport = {"width": 1280, "height": 900} if size == "desktop" else {"width": 360, "height": 740}
    visiting = visit(demo.url, color_scheme=scheme, viewport=viewport)
    page = visiting.open("charts")
    page.evaluate("""async () => {
        const headers = {"content-type": "application/json"};
        for (let n = 1; Number(document.querySelector("[data-looks]").dataset.looks) < 12; n = n % 5 + 1) {
            const body = JSON.stringify({prompt: "What is learning?", max_tokens: 300, n, ignore_eos: true});
            await fetch("v1/completions", {method: "POST", body, headers});
        }
    }""")
    assert float(page.locator("[data-chart='Batch size'] .legend b").inner_text()) > 1
    visiting.shoot(f"charts-{scheme}-{size}")
    for view in ("models", "log", "settings", "playground"):
        page = visiting.open(view)
        if view == "playground":
            page.get_by_label("tokens and alternatives").check()
            ask(page, QUESTION, temperature="0.7", max_tokens="40")
            page.get_by_text("The same request as curl, Python or LMI").click()
        page.wait_for_selector(".view:not([hidden]) > :nth-child(2)")
        visiting.shoot(f"{view}-{scheme}-{size}")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= page.evaluate("document.documentElement.clientWidth"), view
    page.goto(f"{demo.url}/docs")
    page.get_by_text("openai", exact=True).click()
    visiting.shoot(f"docs-{scheme}-{size}")
