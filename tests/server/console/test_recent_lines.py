from djl_python.server.console.recent_lines import KEPT, MAX_CHARACTERS, LogRecord, RecentLines


def test_the_last_records_are_kept_with_their_numbers() -> None:
    lines = RecentLines()
    for number in range(1, KEPT + 4):
        lines.add(f"record {number}")
    kept = lines.after(0)
    assert len(kept) == KEPT
    assert kept[0] == LogRecord(4, "record 4")
    assert lines.after(KEPT + 2) == [LogRecord(KEPT + 3, f"record {KEPT + 3}")]
    assert lines.after(KEPT + 3) == []
    assert lines.after(KEPT + 4) == kept  # a number of another server's
    lines.add("x" * (MAX_CHARACTERS + 1))
    assert lines.after(KEPT + 3) == [LogRecord(KEPT + 4, "x" * MAX_CHARACTERS)]
