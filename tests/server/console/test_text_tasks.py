"""The playground with models that read texts and write none, in a real Chromium: a form for what each of them does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from djl_python.testing import RunningServer, running_server
from tests import text_tasks
from tests.server.console.conftest import FAINT, NAMELESS, Visit, shows_none, shows_one
from tests.text_tasks import LIMIT, overlap

Visits = Callable[..., Visit]
#: Model -> its task.
MODELS = {
    "embed": "feature-extraction",
    "rank": "text-ranking",
    "classify": "text-classification",
    "zero": "zero-shot-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "fill": "fill-mask",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A model for each task."""
    folder = tmp_path_factory.mktemp("models")
    options = []
    for name, task in MODELS.items():
        path = folder / name
        path.mkdir()
        shutil.copy(Path(text_tasks.__file__), path / "model.py")
        (path / "serving.properties").write_text(f"option.task={task}\noption.entryPoint=model.py:Canned\n")
        options += ["-m", f"{name}={path}"]
    with running_server(*options) as running:
        yield running


def asked(page: Any, model: str, title: str, **fields: str) -> list[list[str]]:
    """The cells of the answer of a model whose form has this title."""
    page.get_by_label("Model", exact=True).select_option(model)
    form = page.get_by_role("form", name=title)
    for name, value in fields.items():
        form.locator(f"[name={name}]").fill(value)
    form.get_by_role("button", name=title).click()
    page.locator(".scores, .answers [role=alert]").wait_for()
    rows = page.locator(".scores tbody tr")
    return [rows.nth(at).locator("td").all_text_contents() for at in range(rows.count())]


def test_each_task_has_its_form_and_its_answer(server: RunningServer, visit: Visits) -> None:
    visiting = visit(server.url)
    page = visiting.open("playground")
    vectors = asked(page, "embed", "Embed", texts="a b\nc\n\na b")
    assert [(text, values) for text, values, _ in vectors] == [("a b", "4"), ("c", "4"), ("a b", "4")]
    assert [cosine for *_, cosine in vectors][::2] == ["1.0000", "1.0000"] and float(vectors[1][2]) < 1
    shows_none(page.get_by_text("Chat", exact=True))
    shows_one(page.get_by_text("Request", exact=True))
    ranked = asked(page, "rank", "Rank", query="a b", documents="c\na")
    assert ranked == [["a", f"{overlap('a b', 'a'):.4f}"], ["c", "0.0000"]]
    classified = asked(page, "classify", "Classify", text="a b")
    assert [name for name, _ in classified] == ["question", "short", "long"]
    assert asked(page, "zero", "Classify", text="a b", labels="x\na") == [["a", "1.0000"], ["x", "0.0000"]]
    assert asked(page, "tag", "Find entities", text="\U0001f680 Ada lived") == [["Ada", "NAME", "0.7500"]]
    assert asked(page, "answer", "Find answers", question="q", context="so it")[0] == ["so", "0.5000"]
    assert asked(page, "fill", "Fill masks", text="a [MASK]")[0] == ["a one", "one", "0.5000"]
    assert page.evaluate(FAINT) == [] and page.evaluate(NAMELESS) == []


def test_a_refusal_is_shown_and_any_request_can_be_made(server: RunningServer, visit: Visits) -> None:
    visiting = visit(server.url)
    visiting.expected = {424}
    page = visiting.open("playground")
    assert asked(page, "tag", "Find entities", text="word " * LIMIT) == []
    assert "tokens" in (page.locator(".answers [role=alert]").text_content() or "")
    page.get_by_label("Model", exact=True).select_option("rank")
    page.get_by_label("Request", exact=True).check()
    page.locator("[name=text]").fill('{"query": "a b", "texts": ["a"]}')
    page.get_by_role("button", name="Send", exact=True).click()
    page.locator(".result[aria-busy=false]").wait_for()
    assert '"score": 0.5' in (page.locator(".result pre").text_content() or "")
