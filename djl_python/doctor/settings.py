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
    environment = described_environment()
    for name, value in environment.values.items():
        yield Finding(_SECTION, name, value)
    if not environment.values:
        yield Finding(_SECTION, "variables", "none of this server's are set")
    for problem in environment.problems:
        yield Finding(
            _SECTION, "wrong", problem, Level.BROKEN, "models that do not set this themselves refuse to start"
        )
    for warning in (*environment.warnings, *config.warnings):
        yield Finding(_SECTION, "warning", warning, Level.HINT)
