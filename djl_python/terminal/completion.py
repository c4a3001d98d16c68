"""The subcommand `djl-serving completion`: a script that completes command lines in a shell.

Runs in the command's own process. shtab writes the script from the parsers of the subcommands: nothing of this project
runs when somebody presses Tab.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import shtab

from ..core.help_text import HelpFormatter

_SHELLS: Final = ("bash", "zsh", "fish")
_EXAMPLES: Final = """\
to have it in every shell:
  bash    djl-serving completion bash >~/.local/share/bash-completion/completions/djl-serving
  zsh     djl-serving completion zsh >"${fpath[1]}/_djl-serving"
  fish    djl-serving completion fish >~/.config/fish/completions/djl-serving.fish
in this one: eval "$(djl-serving completion bash)", or djl-serving completion fish | source
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving completion",
        description="Print a script that has a shell complete what follows djl-serving.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    made.add_argument("shell", choices=_SHELLS)
    return made


def main(
    arguments: Sequence[str], server: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]
) -> int:
    """Run `djl-serving completion ARGUMENTS`; returns the exit code.

    Args:
        server: the command line without a subcommand.
        commands: those of subcommands, by name.
    """
    options = parser().parse_args(arguments)
    print(script(options.shell, server, commands))
    return 0


def script(shell: str, server: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for one of `_SHELLS`. Arguments as `main`."""
    for action in server._get_positional_actions():  # a subcommand stands in their place, and shtab offers only one
        server._remove_action(action)
    whole = argparse.ArgumentParser(prog="djl-serving", parents=[server], add_help=False)
    names = whole.add_subparsers()
    for name, command in {**commands, "completion": parser()}.items():
        text = re.split(r"[.:;]\s", command.description or "")[0].rstrip(".")
        names.add_parser(name, parents=[command], add_help=False, help=text)
    for action in _actions(whole):
        _say_what_completes(action)
    return shtab.complete(whole, shell)


def _actions(whole: argparse.ArgumentParser) -> list[argparse.Action]:
    own = whole._actions
    below = [
        choice for action in own if isinstance(action, argparse._SubParsersAction) for choice in action.choices.values()
    ]
    return own + [action for parser in below for action in _actions(parser)]


def _say_what_completes(action: argparse.Action) -> None:
    """Files and directories complete what takes a path."""
    metavar = str(action.metavar or "")
    if action.type is Path or metavar == "FILE":
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif any(word in metavar for word in ("DIR", "MODEL", "TARGET")):
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
