"""What an examination finds. Runs in the command's own process."""

from __future__ import annotations

import enum

import msgspec


class Level(enum.StrEnum):
    """How a finding is to be taken."""

    OK = "ok"
    HINT = "hint"  # something would be faster, or is missing that may be wanted
    BROKEN = "broken"  # models can't be served so


class Finding(msgspec.Struct, frozen=True):
    """One fact. `advice` says what to do about a fault; "" without one."""

    section: str
    name: str
    value: str
    level: Level = Level.OK
    advice: str = ""


def mib(size: int) -> str:
    """Bytes, in MiB or GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size >> 20} MiB"
