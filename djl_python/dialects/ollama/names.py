"""The names of models in Ollama's API, where each has a tag. Runs in the front end and in the worker."""

from __future__ import annotations

from typing import Final

LATEST: Final = ":latest"


def bare_name(name: str) -> str:
    """The name without `:latest`, which Ollama's clients may add."""
    return name.removesuffix(LATEST)


def tagged_name(name: str) -> str:
    """The name as Ollama shows it."""
    return name if ":" in name else f"{name}{LATEST}"
