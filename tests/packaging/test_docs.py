"""The documentation says what is true: settings, paths, names."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from djl_python import Input, Output, PairList
from djl_python.config import ModelSpec, Options, ServerConfig, ServingSettings
from djl_python.config.binding import settings_of
from djl_python.dialects.lmi.parameters import ALIASES, LmiParameters
from djl_python.handler import Context, Handler, Reply
from djl_python.output_formatter import Sequence, TextGenerationOutput, TextInput, Token
from djl_python.server.metrics.specs import SPECS
from djl_python.sources import load_model_config
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
    _, _, text = (DOCS / "lmi.md").read_text(encoding="utf-8").partition("## LMI's parameters")
    rows = [line.split(" | ")[0] for line in text.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {*LmiParameters.__struct_fields__, *ALIASES}


@pytest.mark.parametrize(
    ("page", "documented"),
    [
        *(("handlers", kind) for kind in (Input, Output, PairList, Context, Handler, Reply)),
        *(("formatters", kind) for kind in (TextGenerationOutput, Sequence, Token, TextInput)),
    ],
)
def test_types_for_users_code_are_documented(page: str, documented: type) -> None:
    text = re.sub(
        r"^```.*?^```$", "", (DOCS / f"{page}.md").read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    fields = {field.name for field in dataclasses.fields(documented)} if dataclasses.is_dataclass(documented) else set()
    names = {name for name in {*dir(documented), *fields} if not name.startswith("_")} - {
        "from_call"
    }  # the server's own
    assert names - set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text)))) == set()


def linked_from(path: Path) -> set[Path]:
    return {(path.parent / target).resolve() for target, _ in links(path.read_text(encoding="utf-8")) if target}


def test_index_leads_to_every_document() -> None:
    assert set(DOCS.glob("*.md")) - linked_from(DOCS / "index.md") == {DOCS / "index.md"}


def test_readme_leads_to_every_document_in_two_steps() -> None:
    first = linked_from(README) & set(DOCUMENTS)
    linked = first.union(*map(linked_from, first))
    assert [path.name for path in DOCS.glob("*.md") if path not in linked] == []


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


def test_extras_for_users_are_in_the_first_document() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    rows = re.findall(r"^\| `([\w-]+)` \|", (DOCS / "start.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*rows, "dev", "test", "wheel"} == set(setup["options.extras_require"])


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
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(f"{target}#{anchor}")
    assert broken == []


SHOWN = [
    pytest.param(block.text, id=f"{name_of(path)} {block.text.splitlines()[0]}")
    for path in DOCUMENTS
    for block in blocks(path.read_text(encoding="utf-8"))
    if block.language == "properties"
]


@pytest.mark.parametrize("text", SHOWN)
def test_settings_that_are_shown_are_taken(text: str, tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text(text, encoding="utf-8")
    (tmp_path / "model.py").touch()
    config = load_model_config(ModelSpec(name="shown", url=str(tmp_path)), ServerConfig(), environ={})
    assert config.warnings == ()


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
    """On two\n    lines."""


class Request(msgspec.Struct):
    count: Annotated[int, Meta(ge=1, description="How many.")] | None = None
    words: str | list[str] | None = None
    inner: Inner | None = None
    label: Any = None


def test_fields_of_a_request() -> None:
    assert fields_table(Request, without=("label",)).splitlines()[2:] == [
        "| `count` | integer ≥ 1 | How many. |",
        "| `words` | text or array of text |  |",
        "| `inner` | object | On two lines. |",
    ]


def test_reading_links_and_headings() -> None:
    text = "# A `b`, c\n[x](y.md#z) [here](#a-b-c)\n[out](https://example.com)\n```sh\n# no heading\n```\n"
    assert headings(text) == ["A `b`, c"]
    assert anchors(text) == {"a-b-c"}
    assert list(links(text)) == [("y.md", "z"), ("", "a-b-c")]
