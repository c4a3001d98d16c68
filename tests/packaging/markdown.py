"""README.md as data: its shell blocks, what they print, and the tables that come from the code (`make docs`)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from djl_python.config import environment_table, settings_table
from djl_python.server.metrics import SPECS

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of Markdown: its language and its text."""

    language: str
    text: str


@dataclass(frozen=True)
class Curl:
    """A `curl` command as an HTTP request, and what it prints ("" where the text does not say)."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None
    prints: str


def blocks(markdown: str) -> list[Block]:
    """The fenced blocks, in order."""
    return [Block(language, text) for language, text in _BLOCK.findall(markdown)]


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block as argument lists; continued lines are joined, comments dropped."""
    found: list[list[str]] = []
    pending = ""
    for line in block.text.replace("\\\n", " ").splitlines(keepends=True):
        pending += line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation that goes on in the next line
            continue
        pending = ""
        if words:
            found.append(words)
    if pending:
        raise ValueError(f"a quotation that does not end: {pending}")
    return found


def with_output(markdown: str, language: str) -> list[tuple[Block, str]]:
    """The blocks of a language, each with what it prints: the block after it, if that is json or text, or ""."""
    everything = blocks(markdown)
    return [
        (block, following.text if following.language in ("json", "text") else "")
        for block, following in zip(everything, [*everything[1:], Block("", "")], strict=True)
        if block.language == language
    ]


def curls(markdown: str) -> list[Curl]:
    """Every curl command, with what it prints."""
    return [
        _curl(words[1:], prints)
        for block, prints in with_output(markdown, "sh")
        for words in commands(block)
        if words[0] == "curl"
    ]


def _curl(words: list[str], prints: str) -> Curl:
    method, url, body, headers = "", "", None, {}
    rest = iter(words)
    for word in rest:
        if word in ("-X", "--request"):
            method = next(rest)
        elif word in ("-H", "--header"):
            name, _, value = next(rest).partition(":")
            headers[name.strip().lower()] = value.strip()
        elif word in ("-d", "--data", "--json"):
            body = next(rest)
            if word == "--json":
                headers["content-type"] = "application/json"
        elif not word.startswith("-"):
            url = word
        elif word not in ("-N", "-s", "-i", "-sN"):
            raise ValueError(f"curl {word}: an option that this does not know")
    return Curl(method or ("GET" if body is None else "POST"), url, headers, body, prints)


def metrics_table() -> str:
    """Every metric as a Markdown table."""
    rows = [f"| `{spec.full_name}` | {spec.kind.value} | {spec.help} |" for spec in SPECS]
    return "\n".join(["| metric | type | what |", "|---|---|---|", *rows])


def with_tables(markdown: str) -> str:
    """The text with each generated part, between its markers, brought up to date."""
    tables = {"settings": settings_table(), "environment": environment_table(), "metrics": metrics_table()}
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by make docs -->", f"<!-- end of {name} -->"
        before, found, rest = markdown.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"README.md has no {begin} ... {end}")
        markdown = f"{before}{begin}\n\n{table.strip()}\n\n{end}{after}"
    return markdown


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
