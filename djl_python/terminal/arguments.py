"""What the command lines of `chat` and `run` have in common. Runs in the command's own process."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from ..bench.arguments import header
from ..commands.models import add_settings
from ..config import api_key

#: Options that become fields of a request's body: (option, field, type, help).
_PARAMETERS: Final = (
    ("--max-tokens", "max_tokens", int, "tokens of an answer at most (default: the server's)"),
    ("--temperature", "temperature", float, "0: the likeliest token, always; higher: more random"),
    ("--top-p", "top_p", float, "sample from the likeliest tokens that have this probability together"),
    ("--top-k", "top_k", int, "sample from so many of the likeliest tokens"),
    ("--seed", "seed", int, "of the random numbers: the same seed gives the same answer"),
)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add MODEL|URL, and how to talk to it."""
    parser.add_argument(
        "target",
        metavar="MODEL|URL",
        help="http(s)://host:port of a server with OpenAI's API; or a model (a directory, hf://owner/model, "
        "template://demo): a server is started for it, and ends with this command",
    )
    parser.add_argument("--model", default="", metavar="NAME", help="which of the server's models, if it has several")
    parser.add_argument(
        "--api-key",
        default=api_key(),
        metavar="KEY",
        help="sent as a bearer token (default: the variable DJL_API_KEY, which other users can't read)",
    )
    parser.add_argument(
        "--header",
        type=header,
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="sent with every request; may be repeated",
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="the system prompt")
    add_settings(parser)


def add_parameters(parser: argparse.ArgumentParser) -> None:
    """Add the parameters of generation."""
    group = parser.add_argument_group("parameters of generation")
    for option, field, kind, text in _PARAMETERS:
        group.add_argument(option, dest=field, type=kind, metavar="N" if kind is int else "X", help=text)
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="the answer ends before this text; may be repeated"
    )
    group.add_argument(
        "--body", type=json_object, default={}, metavar="JSON", help="further fields of the request, as an object"
    )


def parameters_of(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a request's body that the command line says."""
    names = [field for _, field, _, _ in _PARAMETERS]
    given = {name: getattr(options, name) for name in [*names, "stop"] if getattr(options, name) is not None}
    return {**given, **options.body}


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, for argparse."""
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r}: expected a JSON object, like {{"min_p": 0.1}}')
    return value
