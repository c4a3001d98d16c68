"""Markdown as data: its fenced blocks, the commands of shell blocks with what they print, its headings and links."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = re.compile(r"^```(\w*)(?: +(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the file that its first line names (```python hello/model.py)."""

    language: str
    text: str
    file: str = ""


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
    return [Block(language, text, file) for language, file, text in _BLOCK.findall(markdown)]


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block as argument lists; continued lines are joined, comments dropped."""
    argument_lists: list[list[str]] = []
    pending = ""
    for line in block.text.replace("\\\n", " ").splitlines(keepends=True):
        pending += line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation that goes on in the next line
            continue
        pending = ""
        if words:
            argument_lists.append(words)
    if pending:
        raise ValueError(f"a quotation that does not end: {pending}")
    return argument_lists


def with_output(markdown: str, language: str) -> list[tuple[Block, str]]:
    """The blocks of a language, each with what it prints: the block after it, if that is json or text, or ""."""
    return [
        (block, following.text if following.language in ("json", "text") and not following.file else "")
        for block, following in itertools.pairwise([*blocks(markdown), Block("", "")])
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


def links(markdown: str) -> Iterator[tuple[str, str]]:
    """(path, anchor) of every link into the repository; the path is "" for a link within the document."""
    for target in _LINK.findall(_BLOCK.sub("", markdown)):
        if not target.startswith(("https://", "http://")):
            path, _, anchor = target.partition("#")
            yield path, anchor


def headings(markdown: str) -> list[str]:
    """The text of every heading, in order."""
    return _HEADING.findall(_BLOCK.sub("", markdown))


def anchors(markdown: str) -> set[str]:
    """The anchors that headings have where Markdown is shown: lower case, hyphens for blanks, no punctuation."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(markdown)}
