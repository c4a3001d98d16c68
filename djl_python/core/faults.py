"""All faults of a model: each check adds lines, and one error has them all.

Runs in the front end, for `djl-serving check`, and in the worker, before a model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from .errors import ConfigError, ModelLoadError


class Faults:
    """Lines, each of which names one fault, in the order in which they were found; none of them twice."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    @property
    def message(self) -> str:
        """The lines, one below the other."""
        return "\n".join(self._lines)

    def add(self, lines: Iterable[str]) -> None:
        """Add faults."""
        self._lines.update(dict.fromkeys(lines))

    @contextmanager
    def collected(self, where: str = "") -> Iterator[None]:
        """Add the faults of an error that the block raises; the rest of the block is skipped.

        Args:
            where: precedes each line: where the setting stands.
        """
        try:
            yield
        except (ConfigError, ModelLoadError) as refusal:
            self.add(where + line for line in refusal.message.splitlines())

    def refuse(self, error: type[ConfigError | ModelLoadError] = ModelLoadError) -> None:
        """Raise the faults as one `error`, if there are any."""
        if self:
            raise error(self.message)
