"""The documentation says what is true: settings, paths, names."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

from tests.packaging.markdown import README, ROOT, Block, blocks, commands, with_tables

TEXT = README.read_text(encoding="utf-8")
MARKDOWN = [ROOT / "README.md", *sorted((ROOT / "djl_python").glob("*.md"))]
MARKDOWN += sorted((ROOT / "serving_templates").glob("*/README.md"))
SOURCES = sorted([*(ROOT / "djl_python").rglob("*.py"), *(ROOT / "handlers").rglob("*.py")])


def test_tables_are_what_the_code_declares() -> None:
    assert with_tables(TEXT) == TEXT, "run `make docs`"


def test_changelog_has_unreleased_first() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


def test_extras_that_are_named_exist() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = {path: path.read_text(encoding="utf-8") for path in [*SOURCES, *MARKDOWN, ROOT / "docker" / "Dockerfile"]}
    named = {extra for text in texts.values() for extra in re.findall(r"djl-serving\[([^\]]*)\]", text)}
    assert {"images", "s3"} <= named <= set(setup["options.extras_require"])


def test_everybody_needs_the_same_python() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    least = setup["options"]["python_requires"].removeprefix(">=")
    assert tuple(map(int, least.split("."))) >= (3, 11, 4), "tarfile's filters"
    assert f"Python {least} or newer" in TEXT
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert makefile.count(f"Python {least} or newer") == 2
    assert f"sys.version_info >= ({least.replace('.', ', ')})" in makefile


def test_decisions_are_numbered_and_short() -> None:
    text = (ROOT / "djl_python" / "DECISIONS.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [section.partition(".")[0] for section in sections] == [str(n + 1) for n in range(len(sections))]
    too_long = [section.splitlines()[0] for section in sections if len(section.strip().splitlines()) > 11]
    assert too_long == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_say_what_they_are(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring and docstring.splitlines()[0].rstrip().endswith((".", ":", "?")), "no docstring, or no sentence"


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_shell_blocks_name_what_exists(path: Path) -> None:
    """Make targets, and paths below the repository's folders (or, in a template, beside it)."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    folders = {entry.name for entry in ROOT.iterdir() if entry.is_dir()}
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language != "sh":
            continue
        for words in commands(block):
            if words[0] == "make":
                assert [word for word in words[1:] if "=" not in word and word not in targets] == []
            if words[0] in ("make", "curl"):
                continue
            for word in words[1:]:
                value = word.rpartition("=")[2]
                if value.partition("/")[0] in folders and not value.startswith("/"):
                    assert (ROOT / value).exists(), f"{path.name}: {word}"


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_python_blocks_of_the_readme_compile() -> None:
    for block in blocks(TEXT):
        if block.language == "python":
            ast.parse(block.text)


def test_reading_blocks() -> None:
    assert blocks("a\n```sh\nls \\\n  -l  # all\n```\n```\nx\n```\n") == [
        Block("sh", "ls \\\n  -l  # all\n"),
        Block("", "x\n"),
    ]
    assert commands(blocks("```sh\nls \\\n  -l  # all\n\n# no\nls\n```\n")[0]) == [["ls", "-l"], ["ls"]]
    assert commands(Block("sh", "echo 'a\n b'\nls\n")) == [["echo", "a\n b"], ["ls"]]
