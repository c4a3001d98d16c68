"""The command lines: those that documents show are taken, and what they say is sent."""

from __future__ import annotations

import importlib
import itertools

import pytest

from djl_python.terminal import chat
from djl_python.terminal.arguments import parameters_of
from tests.packaging.documents import DOCUMENTS
from tests.packaging.markdown import blocks, commands

MODULES = {
    "chat": "djl_python.terminal.chat",
    "completion": "djl_python.terminal.completion",
    "doctor": "djl_python.doctor.command",
    "run": "djl_python.terminal.run",
}


def shown() -> list[list[str]]:
    """Every such command in the documents, without what the shell does with it."""
    argument_lists = []
    for path in DOCUMENTS:
        for block in blocks(path.read_text(encoding="utf-8")):
            for words in commands(block) if block.language == "sh" else ():
                for _, part in itertools.groupby(words, lambda word: word == "|"):
                    command = [word for word in part if not word.startswith((">", "<"))]
                    if command[0] == "djl-serving" and command[1] in MODULES:
                        argument_lists.append(command[1:])
    return argument_lists


def test_all_of_them_are_shown() -> None:
    assert {command[0] for command in shown()} == MODULES.keys()


@pytest.mark.parametrize("command", shown(), ids=" ".join)
def test_documented_commands_are_parsed(command: list[str]) -> None:
    importlib.import_module(MODULES[command[0]]).parser().parse_args(command[1:])


def test_command_line_options_become_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = chat.parser()
    assert parameters_of(parser.parse_args(["m"])) == {}
    said = "m --temperature 0 --max-tokens 5 --stop a --stop b".split()
    options = parser.parse_args([*said, "--body", '{"min_p": 0.1, "max_tokens": 6}'])
    assert parameters_of(options) == {"temperature": 0.0, "max_tokens": 6, "stop": ["a", "b"], "min_p": 0.1}
