"""The documentation says what is true: settings, paths, names."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from djl_python.config import Options, ServerConfig, ServingSettings
from djl_python.config.binding import settings_of
from djl_python.dialects.lmi.parameters import ALIASES, LmiParameters
from djl_python.server.metrics import SPECS
from tests.packaging.documents import DOCS, DOCUMENTS, README, ROOT, TABLES, markers, with_tables
from tests.packaging.fields import fields_table
from tests.packaging.markdown import Block, anchors, blocks, commands, headings, links

ARCHITECTURE = ROOT / "djl_python" / "ARCHITECTURE.md"
DECISIONS = ROOT / "djl_python" / "DECISIONS.md"
TEXT = README.read_text(encoding="utf-8")
MARKDOWN = [*DOCUMENTS, ARCHITECTURE, DECISIONS, ROOT / "CHANGELOG.md", ROOT / "tests" / "bench" / "README.md"]
MARKDOWN += sorted((ROOT / "serving_templates").glob("*/README.md"))
SOURCES = sorted([*(ROOT / "djl_python").rglob("*.py"), *(ROOT / "handlers").rglob("*.py")])


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_tables_are_what_the_code_declares(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run `make docs`"


@pytest.mark.parametrize("name", TABLES)
def test_each_table_is_in_one_document(name: str) -> None:
    begin, _ = markers(name)
    assert sum(path.read_text(encoding="utf-8").count(begin) for path in DOCUMENTS) == 1


def test_a_table_that_does_not_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="without <!-- end of metrics -->"):
        with_tables("<!-- metrics: written by make docs -->\n")


def test_every_setting_is_documented() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    declared = (*settings_of(ServingSettings), *settings_of(Options, "option."), *settings_of(ServerConfig))
    assert [setting.key for setting in declared if f"| `{setting.key}`" not in text] == []


def test_every_metric_is_documented() -> None:
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert [spec.full_name for spec in SPECS if f"| `{spec.full_name}` |" not in text] == []


def test_every_parameter_of_lmi_is_documented() -> None:
    """By hand, unlike those of the other APIs: with defaults, and what belongs together in one row."""
    _, _, text = (DOCS / "apis.md").read_text(encoding="utf-8").partition("### LMI's parameters")
    rows = [line.split(" | ")[0] for line in text.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {*LmiParameters.__struct_fields__, *ALIASES}


def test_index_and_readme_lead_to_every_document() -> None:
    for start in (DOCS / "index.md", README):
        found = {(start.parent / path).resolve() for path, _ in links(start.read_text(encoding="utf-8")) if path}
        assert [path.name for path in DOCS.glob("*.md") if path not in found and path.name != "index.md"] == []


def test_first_pages_are_short() -> None:
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in (README, ARCHITECTURE)}
    assert lines["README.md"] <= 200
    assert lines["ARCHITECTURE.md"] <= 120


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
    """Each has a number of its own, which comments refer to, and ten lines of text; figures and tables come on top."""
    text = re.sub(
        r"^```.*?^```\n\n?|^\|[^\n]*\n\n?", "", DECISIONS.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    sections = re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]
    decisions = [section for section in sections if section[0].isdigit()]
    numbers = sorted(int(section.partition(".")[0]) for section in decisions)
    assert numbers == list(range(1, len(decisions) + 1))
    too_long = [section.splitlines()[0] for section in decisions if len(section.strip().splitlines()) > 11]
    assert too_long == []


def test_decisions_have_a_table_of_contents() -> None:
    """Every topic and every decision, in their order."""
    text = DECISIONS.read_text(encoding="utf-8")
    contents, _, rest = text.partition("\n## ")
    assert re.findall(r"^ *- \[(.+)\]\(#", contents, re.MULTILINE) == headings(f"## {rest}")


def test_decisions_that_are_referred_to_exist() -> None:
    count = len(re.findall(r"^### \d+\.", DECISIONS.read_text(encoding="utf-8"), re.MULTILINE))
    texts = [path.read_text(encoding="utf-8") for path in [*SOURCES, *MARKDOWN]]
    named = {int(number) for text in texts for number in re.findall(r"\b[Dd](?:ecision|ECISIONS) (\d+)", text)}
    assert named <= set(range(1, count + 1))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_say_what_they_are(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring and docstring.splitlines()[0].rstrip().endswith((".", ":", "?")), "no docstring, or no sentence"


@pytest.mark.parametrize("path", MARKDOWN, ids=name_of)
def test_shell_blocks_name_what_exists(path: Path) -> None:
    """Make targets, and paths below the repository's folders (or, in a template, beside it)."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
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


@pytest.mark.parametrize("path", MARKDOWN, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target, anchor in links(path.read_text(encoding="utf-8")):
        found = (path.parent / target).resolve() if target else path
        if not found.exists() or (anchor and anchor not in anchors(found.read_text(encoding="utf-8"))):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_python_blocks_compile(path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "python":
            ast.parse(block.text)


def test_reading_blocks() -> None:
    assert blocks("a\n```sh\nls \\\n  -l  # all\n```\n```\nx\n```\n```python b/model.py\ny\n```\n") == [
        Block("sh", "ls \\\n  -l  # all\n"),
        Block("", "x\n"),
        Block("python", "y\n", "b/model.py"),
    ]
    assert commands(blocks("```sh\nls \\\n  -l  # all\n\n# no\nls\n```\n")[0]) == [["ls", "-l"], ["ls"]]
    assert commands(Block("sh", "echo 'a\n b'\nls\n")) == [["echo", "a\n b"], ["ls"]]


class Inner(msgspec.Struct):
    """Of two\n    lines."""


class Request(msgspec.Struct):
    count: Annotated[int, Meta(ge=1, description="How many.")] | None = None
    words: str | list[str] | None = None
    inner: Inner | None = None
    label: Any = None


def test_fields_of_a_request() -> None:
    assert fields_table(Request, without=("label",)).splitlines()[2:] == [
        "| `count` | integer ≥ 1 | How many. |",
        "| `words` | text or array of text |  |",
        "| `inner` | object | Of two lines. |",
    ]


def test_reading_links_and_headings() -> None:
    text = "# A `b`, c\n[x](y.md#z) [here](#a-b-c)\n[out](https://example.com)\n```sh\n# no heading\n```\n"
    assert headings(text) == ["A `b`, c"]
    assert anchors(text) == {"a-b-c"}
    assert list(links(text)) == [("y.md", "z"), ("", "a-b-c")]
