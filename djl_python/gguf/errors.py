"""The error of this room. Runs wherever a GGUF file is read."""

from __future__ import annotations

from ..core.errors import ConfigError


class GgufError(ConfigError):
    """A GGUF file is damaged, or has something that is not served here. The message names the file and the place."""
