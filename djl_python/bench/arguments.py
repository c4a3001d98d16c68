"""Values of arguments on the command line, for argparse. Runs in the processes of `bench` and `batch`."""

from __future__ import annotations

import argparse
import math
from typing import Any

import msgspec

from ..config import api_key


def counts(text: str) -> list[int]:
    """`1,8,32` as numbers, for argparse."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected positive numbers separated by commas, like 1,8,32")
    return numbers


def rates(text: str) -> list[float]:
    """`0.5,2,8` as numbers, for argparse."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [0.0]
    if not all(0 < number < math.inf for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r}: expected positive numbers separated by commas, like 0.5,2,8")
    return numbers


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, for argparse."""
    try:
        value: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object: {exc}") from None
    return value


def add_headers(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add --header and --api-key, of which `headers_of` makes headers; `note` is put before their help."""
    parser.add_argument(
        "--header", type=header, action="append", default=[], metavar="NAME:VALUE", help=f"{note}may be repeated"
    )
    parser.add_argument(
        "--api-key",
        default=api_key(),
        metavar="KEY",
        help=f"{note}sent as a bearer token (default: the variable DJL_API_KEY, which other users can't read)",
    )


def headers_of(options: argparse.Namespace) -> dict[str, str]:
    """The headers of every request: those of --header, and the key of --api-key unless they have Authorization."""
    given, key = dict(options.header), options.api_key
    if key and "authorization" not in map(str.lower, given):
        given["Authorization"] = f"Bearer {key}"
    return given


def header(text: str) -> tuple[str, str]:
    """`Name: value`, for argparse."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME:VALUE")
    return name.strip(), value.strip()
