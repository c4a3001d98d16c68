"""Names of hosts and origins of pages, as the settings list them. Runs in the front end."""

from __future__ import annotations

from typing import Final

_HOST: Final = r"(?:\*|(?:\*\.)?[A-Za-z0-9_-][A-Za-z0-9_.-]*)"
#: An origin (RFC 6454). `null` is none: any page may have it, in a frame.
_ORIGIN: Final = r"[a-z][a-z0-9+.-]*://[A-Za-z0-9._~%:\[\]-]+"

HOSTS_PATTERN: Final = rf"^(?:{_HOST}(?:\s*,\s*{_HOST})*)?$"
HOSTS_EXPECTED: Final = "names of hosts, separated by commas: models.example.com, *.example.com, or *"
ORIGINS_PATTERN: Final = rf"^(?:\*|{_ORIGIN}(?:\s*,\s*{_ORIGIN})*)?$"
ORIGINS_EXPECTED: Final = "* or origins, separated by commas: https://app.example.com, without a path"


def listed(text: str) -> frozenset[str]:
    """The names of a list, in lower case."""
    return frozenset(name.strip().lower() for name in text.split(",") if name.strip())
