"""Limits of single tenants that differ from the limits of all others. Runs in the front end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from ..names import values_by_name

#: In place of a number: this tenant has no such limit.
UNLIMITED: Final = "none"


class TenantLimits(msgspec.Struct, frozen=True):
    """A limit's numbers by tenant; None: the tenant has no limit.

    Example:
        >>> limits = TenantLimits.parse("gold=600, staff=none")
        >>> limits.of("gold", 60), limits.of("staff", 60), limits.of("trial", 60)
        (600, None, 60)
    """

    limits: Mapping[str, int | None] = MappingProxyType({})

    def __str__(self) -> str:
        return ", ".join(f"{name}={UNLIMITED if most is None else most}" for name, most in self.limits.items())

    def of(self, tenant: str, default: int | None) -> int | None:
        """A tenant's number, or else the default."""
        return self.limits.get(tenant, default)

    @classmethod
    def parse(cls, text: str) -> TenantLimits:
        """Read NAME=NUMBER pairs, with commas between them.

        Raises:
            ValueError: the text is not such a list; the message begins with "expected".
        """
        expected = f"NAME=NUMBER with commas between them, and numbers from 1, or {UNLIMITED}"
        return cls(values_by_name(text, _limit, expected))


def _limit(text: str) -> int | None:
    if text == UNLIMITED:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError
    return int(text)
