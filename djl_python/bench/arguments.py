"""Values of arguments on the command line, for argparse. Runs in the processes of `bench` and `batch`."""

from __future__ import annotations

import argparse
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


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, for argparse."""
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object: {exc}") from None
    return found


def headers_of(options: argparse.Namespace) -> dict[str, str]:
    """The headers of every request: those of --header; without Authorization among them, the key of DJL_API_KEY."""
    given = dict(options.header)
    key = api_key()
    if key and "authorization" not in map(str.lower, given):
        given["Authorization"] = f"Bearer {key}"
    return given


def header(text: str) -> tuple[str, str]:
    """`Name: value`, for argparse."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME:VALUE")
    return name.strip(), value.strip()
