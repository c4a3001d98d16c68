"""Parses command lines with settings, and explains mistakes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str], *, intermixed: bool = False) -> argparse.Namespace:
    """Parse a command line on which each setting may be an option of its name (`--max-model-len 2048`).

    An option that is neither ends the process with status 2, and names the nearest one.

    Args:
        intermixed: whether arguments that are no options may come on both sides of those that are.

    Raises:
        ConfigError: a setting's option lacks its value.
    """
    own = options_of(parser)
    if any(word.startswith("-") and word.partition("=")[0] not in own for word in arguments):
        from ..config.command_line import expanded  # only now: most command lines do not wait for its imports

        arguments = expanded(arguments, own)
    parsed = parser.parse_known_intermixed_args if intermixed else parser.parse_known_args
    options, unknown = parsed(arguments)
    if wrong := [word for word in unknown if word.startswith("-")]:
        from ..config.command_line import suggestion

        faults = [f"there is no option {name}{suggestion(name, own)}" for name in (w.partition("=")[0] for w in wrong)]
        print(f"{parser.prog}: {block(chr(10).join(faults))}", file=sys.stderr)
        sys.exit(2)
    if unknown:
        parser.error(f"unexpected: {' '.join(unknown)}")
    return options


def options_of(parser: argparse.ArgumentParser) -> Collection[str]:
    """The options that a parser knows, in all their spellings."""
    return parser._option_string_actions.keys()


def block(message: str) -> str:
    """The message with all lines but the first indented by two spaces."""
    return "\n  ".join(message.strip().splitlines())
