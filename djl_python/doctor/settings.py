"""The environment's settings, and what is wrong with them. Runs in `djl-serving doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..config import ServerConfig, described_environment
from .finding import Finding, Level

_SECTION: Final = "environment"


def settings(config: ServerConfig) -> Iterator[Finding]:
    """Variables that set something here: OPTION_*, SERVING_* and those of containers.

    Args:
        config: the server's configuration.
    """
    found = described_environment()
    for name, value in found.values.items():
        yield Finding(_SECTION, name, value)
    if not found.values:
        yield Finding(_SECTION, "variables", "none of this server's are set")
    for problem in found.problems:
        yield Finding(
            _SECTION, "wrong", problem, Level.BROKEN, "models that do not set this themselves refuse to start"
        )
    for warning in (*found.warnings, *config.warnings):
        yield Finding(_SECTION, "warning", warning, Level.HINT)
