"""The command `djl-serving help`: of a command, of a setting, or the list of settings. Runs in its own process."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence

from .table import COMMANDS, module_of


def run_help(arguments: Sequence[str], server: Callable[[], argparse.ArgumentParser]) -> int:
    """Run `djl-serving help ARGUMENTS`; returns the exit code.

    Args:
        server: makes the parser of the command line without a command.
    """
    if not arguments or arguments[0] in ("serve", "help", "version"):
        server().print_help()
        return 0
    name = arguments[0]
    if name == "completion":
        from ..terminal.completion import parser

        parser().print_help()
        return 0
    if (command := module_of(name)) is not None:
        command.parser().print_help()
        return 0
    return _settings() if name == "settings" else _setting(name)


def _settings() -> int:
    from ..config.command_line import known_settings, plainest

    keys = [known.key for known in known_settings().values() if known.type_words]
    for key in dict.fromkeys(keys):
        _print_setting(plainest(key))
    return 0


def _setting(name: str) -> int:
    from ..config.command_line import known_settings
    from ..core.names import did_you_mean

    plain = name.removeprefix("--").removeprefix("option.").replace("-", "_")
    known = known_settings()
    if plain not in known and name.removeprefix("option.") not in known:
        hint = did_you_mean(plain, [*COMMANDS, *known])
        print(f"djl-serving help: there is no command and no setting {name}{hint}", file=sys.stderr)
        return 2
    _print_setting(plain if plain in known else name.removeprefix("option."))
    return 0


def _print_setting(name: str) -> None:
    """Print a setting: its option, its key, its values and its help, as wide as the terminal."""
    from ..config.command_line import known_settings, option_of

    known = known_settings()[name]
    value = "" if known.is_switch else f" {known.type_words.upper() if ',' not in known.type_words else 'VALUE'}"
    default = f", default {known.default}" if known.default else ""
    where = "of the server" if known.of_server else "of a model"
    text = f"{known.key}, {where}{default}. {known.help}" + (
        f" Values: {known.type_words}." if "," in known.type_words and not known.is_switch else ""
    )
    width = min(100, shutil.get_terminal_size().columns)
    print(f"{option_of(name)}{value}")
    print(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    "))
