"""The commands of `djl-serving`, by name. A command's module is imported when it is chosen."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

from ..core.names import nearest

#: Commands with a module of their own.
_MODULES: Final[Mapping[str, str]] = {
    "batch": "djl_python.offline.command",
    "bench": "djl_python.bench.command",
    "chat": "djl_python.terminal.chat",
    "check": "djl_python.commands.check",
    "doctor": "djl_python.doctor.command",
    "engines": "djl_python.server.environments.command",
    "keys": "djl_python.server.keys.command",
    "list": "djl_python.commands.list_models",
    "ps": "djl_python.commands.ps",
    "pull": "djl_python.commands.pull",
    "run": "djl_python.terminal.run",
    "stop": "djl_python.commands.stop",
    "tls": "djl_python.server.tls.command",
}
#: All commands, in the order of the list.
COMMANDS: Final = ("serve", *sorted(_MODULES), "completion", "help", "version")


class Command(Protocol):
    """A command's module."""

    def parser(self) -> argparse.ArgumentParser:
        """Its command line."""
        ...

    def main(self, arguments: Sequence[str]) -> int:
        """Run it; returns the exit code."""
        ...


def module_of(name: str) -> Command | None:
    """The module of a command; None where it has none."""
    return cast(Command, importlib.import_module(_MODULES[name])) if name in _MODULES else None


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The command lines of the commands that have a module, by name."""
    return {name: command.parser() for name in _MODULES if (command := module_of(name)) is not None}


def mistyped(word: str) -> str:
    """The command for which the first word is probably a misspelling; "" if it is more likely a model."""
    if word.startswith("-") or any(mark in word for mark in "/.:=\\") or Path(word).exists():
        return ""
    return nearest(word, COMMANDS)
