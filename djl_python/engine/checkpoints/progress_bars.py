"""transformers' progress bars, reported instead of drawn. Runs in the engine process, at load."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from ..interface import Progress


class ReportingBar:
    """Stands in for transformers' progress bars, and passes every step on."""

    def __init__(self, progress: Progress, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._progress = progress
        self._iterable: Any = args[0] if args else kwargs.get("iterable")
        self._what = str(kwargs.get("desc") or "loading").lower()
        length = len(self._iterable) if isinstance(self._iterable, Sized) else 0
        self.total = int(kwargs.get("total") or length)
        self.n = 0

    def __iter__(self) -> Any:
        for item in self._iterable or ():
            yield item
            self.update()

    def update(self, n: float | None = 1) -> None:
        self.n += int(n or 0)
        self._progress(self._what, self.n, self.total)

    def __enter__(self) -> ReportingBar:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        """Accept all other calls to a progress bar (descriptions, refreshes), and ignore them."""
        return lambda *args, **kwargs: None
