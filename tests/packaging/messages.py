"""The texts that the source has, as patterns: for documents that quote its messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

#: What a format gives, in place of a value: {name} of an f-string, %s of a log line.
VALUE = "\0"
_FORMATTED = re.compile(r"%(?:\.\d+)?[sdrfg]")


def texts(path: Path) -> Iterator[str]:
    """Every string of a module, with `VALUE` where a value goes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within:
            yield _FORMATTED.sub(VALUE, node.value)


def is_said(message: str, text: str) -> bool:
    """Whether a text may read like a message, in which `...` stands for anything: a value, or what is left out."""
    at = 0
    for part in message.split("..."):
        at = text.find(part.strip(), at)
        if at < 0:
            return False
        at += len(part.strip())
    return True
