"""How far a batch is, on a terminal; elsewhere nothing is shown. Runs in the process of `djl-serving batch`."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..batch.journal import Journal


class BatchProgress:
    """A bar with the requests that have their result, tokens/s and the time left; a context manager."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._done_before, self._tokens_before = journal.done, journal.usage.completion_tokens
        self._began_s = time.monotonic()
        console = Console(stderr=True)
        self._bar = Progress(
            BarColumn(None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[failed]}", style="red"),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=journal.head.count, completed=journal.done, speed="", failed="")

    def __enter__(self) -> BatchProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self) -> None:
        """Show the journal's counts."""
        failed = f"{self._journal.failed} failed" if self._journal.failed else ""
        self._bar.update(self._task, completed=self._journal.done, speed=self.speed, failed=failed)

    @property
    def speed(self) -> str:
        """Tokens of this run's answers a second; requests a second where answers do not tell tokens."""
        passed_s = max(time.monotonic() - self._began_s, 1e-9)
        tokens = self._journal.usage.completion_tokens - self._tokens_before
        if tokens:
            return f"{tokens / passed_s:,.0f} tokens/s"
        return f"{(self._journal.done - self._done_before) / passed_s:,.1f} requests/s"
