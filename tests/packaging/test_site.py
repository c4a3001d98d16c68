"""The documents as a site: built strictly, with every page in its navigation, and complete without another host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.packaging.documents import DOCS, ROOT
from tests.packaging.site import OTHERS, PAGES, as_page, gather, generate, in_navigation, sources

#: What a browser fetches by itself when it shows a page.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?([^"'\s>]+)|<link\b[^>]*\bhref=["']?([^"'\s>]+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    gather(folder / PAGES, sources())
    return generate(folder)


def test_every_page_is_built(site: Path) -> None:
    for page in sources().values():
        path = site / page.removesuffix(".md") / "index.html" if page != "index.md" else site / "index.html"
        assert "<h1" in path.read_text(encoding="utf-8"), page


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    fetched = {first or second for page in pages for first, second in FETCHED.findall(page.read_text(encoding="utf-8"))}
    assert any(target.endswith(".css") for target in fetched)
    assert [target for target in fetched if "//" in target] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(\W?(?:https?:)?//[^)]*|@import[^;]*", styles) == []


def test_blocks_have_their_files_names_and_links_their_pages(site: Path) -> None:
    handlers = (site / "handlers" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'class="?filename"?>greeter/model\.py<', handlers)
    assert re.search(r'href="?\.\./examples/custom_handler/"?', handlers)
    assert "```" not in handlers


def test_a_page_that_the_navigation_lacks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"differ in new\.md"):
        gather(tmp_path / PAGES, {**sources(), tmp_path / "new.md": "new.md"})


def test_links_that_lead_nowhere_are_errors(tmp_path: Path) -> None:
    gather(tmp_path / PAGES, sources())
    text = "# Home\n\n[here](nowhere.md) and [there](settings.md#nothing-here)\n"
    (tmp_path / PAGES / "index.md").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"(?s)nowhere\.md.*settings\.md#nothing-here.*2 issues found"):
        generate(tmp_path)


def test_pages_are_the_documents_and_what_is_beside_them() -> None:
    assert sorted(in_navigation()) == sorted({path.name for path in DOCS.glob("*.md")} | set(OTHERS.values()))


def test_links_of_a_page() -> None:
    source = DOCS / "handlers.md"
    text = "[a](settings.md#x) [b](#y) [c](../DECISIONS.md) [d](../cli.py) [e](https://example.com)\n"
    text += "![p](../../tests/bench/results/plot.svg)\n```python a/model.py\n[f](settings.md)\n```\n"
    assert as_page(text, source, sources()) == (
        "[a](settings.md#x) [b](#y) [c](decisions.md) d [e](https://example.com)\n"
        '![p](pictures/plot.svg)\n```python title="a/model.py"\n[f](settings.md)\n```\n',
        {ROOT / "tests" / "bench" / "results" / "plot.svg": "pictures/plot.svg"},
    )
    template = ROOT / "serving_templates" / "chat" / "README.md"
    text, _ = as_page("[s](../../djl_python/docs/settings.md)", template, sources())
    assert text == "[s](../settings.md)"
