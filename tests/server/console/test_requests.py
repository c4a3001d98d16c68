"""The playground's form for handlers of one's own, in a real Chromium: any body, and any answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from djl_python.testing import RunningServer, running_server
from tests.server.console.conftest import FAINT, NAMELESS, Visit, shows_none, shows_one
from tests.vision_checkpoints import picture, png

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visits = Callable[..., Visit]
#: It tells what it got, and answers as `Accept` says.
HANDLER = """
import json

from djl_python import Output


def handle(inputs):
    if inputs.is_empty():
        return None
    accept, kind = inputs.get_property("accept"), inputs.get_property("content-type").split(";")[0]
    body = inputs.get_as_bytes("data" if kind == "multipart/form-data" else None)
    output = Output()
    if accept in ("image/png", "application/octet-stream"):
        output.add(body)
        output.add_property("content-type", accept)
    elif accept == "text/plain":
        output.add(f"<b>{len(body)}</b> bytes")
        output.add_property("content-type", "text/plain")
    elif accept == "application/x-none":
        output = Output(406, "nothing of this type")
        output.add("no such type")
    else:
        text = json.dumps({"kind": kind, "size": len(body), "ids": [12345678901234567890, 2], "many": [{"a, b": []}]})
        output.add(text)
        output.add_property("content-type", "application/json")
    return output
"""
SHOWN = """{
  "kind": "application/json",
  "size": 6,
  "ids": [12345678901234567890, 2],
  "many": [
    {
      "a, b": []
    }
  ]
}"""


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = tmp_path_factory.mktemp("custom")
    (path / "model.py").write_text(HANDLER)
    with running_server("-m", f"custom={path}") as server:
        yield server


def sent(page: Page) -> str:
    """Send the request; the text of the answer's body, or of what is there instead."""
    page.get_by_role("button", name="Send", exact=True).click()
    page.locator(".result[aria-busy=false]").wait_for()
    return page.locator(".result > :nth-child(3)").text_content() or ""


def of_curl(page: Page, directory: Path) -> bytes:
    """What the command that is shown gets."""
    if page.locator(".snippets[open]").count() == 0:
        page.get_by_text("The same request as curl").click()
    command = page.locator(".snippet").text_content() or ""
    done = subprocess.run(["sh", "-c", command], cwd=directory, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_is_sent_and_the_answer_is_easy_to_read(custom: RunningServer, visit: Visits, tmp_path: Path) -> None:
    visiting = visit(custom.url, color_scheme="dark")
    page = visiting.open("playground")
    page.get_by_label("Body", exact=True).fill("[1, 2]")  # a handler of one's own begins with this form
    assert sent(page) == SHOWN
    shows_one(page.locator(".result .badge.good").get_by_text("200 OK"))
    assert page.locator(".result .timing").inner_text().split()[1] == "ms,"
    page.get_by_text("Headers", exact=True).click()
    shows_one(page.get_by_role("row", name="content-type application/json"))
    assert json.loads(of_curl(page, tmp_path)) == json.loads(SHOWN)
    shows_none(page.get_by_text("Not valid JSON"))
    page.get_by_label("Body", exact=True).fill("[1, 'it'")
    page.get_by_text("Not valid JSON, and sent as it is").wait_for()
    assert (page.evaluate(FAINT), page.evaluate(NAMELESS)) == ([], [])
    assert '"size": 8' in sent(page) and b'"size": 8' in of_curl(page, tmp_path)
    page.reload()
    assert page.get_by_label("Body", exact=True).input_value() == "[1, 'it'"


def test_a_file_of_any_type_is_sent(custom: RunningServer, visit: Visits, tmp_path: Path) -> None:
    page = visit(custom.url).open("playground")
    file = tmp_path / "it's.png"
    file.write_bytes(png(picture(24, 24)))
    page.get_by_role("radio", name="File").check()
    shows_one(page.get_by_role("button", name="Send", exact=True, disabled=True))
    page.get_by_label("Upload").set_input_files(file)
    for kind, expected in (("", "image/png"), ("x/y", "x/y"), ("multipart/form-data", "multipart/form-data")):
        page.get_by_label("Content-Type").fill(kind)
        told = json.loads(sent(page))
        assert (told["kind"], told["size"]) == (expected, file.stat().st_size)
        assert json.loads(of_curl(page, tmp_path)) == told
    page.get_by_label("Content-Type").fill("")
    page.get_by_label("Accept").fill("image/png")
    sent(page)
    page.wait_for_function("document.querySelector('img.answered')?.naturalWidth === 24")
    assert of_curl(page, tmp_path) == b""
    assert (tmp_path / "answer.png").read_bytes() == file.read_bytes()
    page.get_by_label("Accept").fill("application/octet-stream")
    assert sent(page) == "This can be saved as a file."
    with page.expect_download() as download:
        page.get_by_role("link", name="Save as answer.bin").click()
    assert Path(download.value.path()).read_bytes() == file.read_bytes()


def test_texts_are_no_markup_and_errors_are_answers_too(custom: RunningServer, visit: Visits) -> None:
    visiting = visit(custom.url)
    visiting.expected = {406}
    page = visiting.open("playground")
    page.get_by_label("Accept").fill("text/plain")
    assert sent(page) == "<b>0</b> bytes"
    page.get_by_label("Accept").fill("application/x-none")
    assert "no such type" in sent(page)
    shows_one(page.locator(".result .badge.bad").get_by_text("406"))
