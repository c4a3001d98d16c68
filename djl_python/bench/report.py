"""Results of runs as rows: medians over rounds, and tables of rows. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Key of a row -> heading.
COLUMNS: Final[Mapping[str, str]] = {
    "concurrency": "clients",
    "request_rate": "sent/s",
    "tokens_s": "tokens/s",
    "requests_s": "requests/s",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p90_ms": "TTFT p90 ms",
    "ttft_p99_ms": "TTFT p99 ms",
    "itl_p50_ms": "inter-token p50 ms",
    "itl_p90_ms": "inter-token p90 ms",
    "itl_p99_ms": "inter-token p99 ms",
    "latency_p50_ms": "latency p50 ms",
    "latency_p90_ms": "latency p90 ms",
    "latency_p99_ms": "latency p99 ms",
    "prompt_tokens": "prompt tokens",
    "short": "short",
    "failed": "failed",
    "client_cpu_s": "client CPU s",
}
#: Keys of the request, the same in every round.
_GIVEN: Final = ("concurrency", "request_rate", "context")
#: Keys that are added up over rounds; all other numbers become medians.
_COUNTS: Final = ("requests", "failed", "short", "tokens", "pieces", "wall_s", "client_cpu_s")


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of several rounds: the median of each rate and latency; counts, wall time and CPU time are added up."""
    row: dict[str, Any] = {}
    for key in rounds[0]:
        values = [measured[key] for measured in rounds if measured[key] is not None]
        if key in _GIVEN or not values:
            row[key] = rounds[0][key]
        elif isinstance(values[0], str):
            row[key] = next(filter(None, values), "")
        elif key in _COUNTS:
            row[key] = round(sum(values), 3)
        else:
            row[key] = round(statistics.median(values), 3)
    return row


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] = COLUMNS) -> str:
    """Rows as a Markdown table of `columns` (key -> heading), numbers aligned to the right."""
    lines = [list(columns.values()), *([cell(row.get(key)) for key in columns] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    words = [all(isinstance(row.get(key), str) for row in rows) and bool(rows) for key in columns]
    text = [
        "| "
        + " | ".join(
            part.ljust(width) if word else part.rjust(width)
            for part, width, word in zip(line, widths, words, strict=True)
        )
        + " |"
        for line in lines
    ]
    rules = (
        ":" + "-" * (width + 1) if word else "-" * (width + 1) + ":" for width, word in zip(widths, words, strict=True)
    )
    text.insert(1, "|" + "|".join(rules) + "|")
    return "\n".join(text)


def shown(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    """Rows as a table of the columns that have values; turned, a line for each column, where it would be too wide."""
    columns = {key: title for key, title in COLUMNS.items() if any(row.get(key) is not None for row in rows)}
    wide = table(rows, columns)
    if len(wide.partition("\n")[0]) <= width:
        return wide
    first, *others = columns
    turned = [{first: columns[key], **{str(n): row.get(key) for n, row in enumerate(rows)}} for key in others]
    return table(turned, {first: columns[first], **{str(n): cell(row.get(first)) for n, row in enumerate(rows)}})


def cell(value: Any) -> str:
    """A value as text: numbers with their significant digits, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
