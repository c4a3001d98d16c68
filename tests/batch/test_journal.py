from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from djl_python.batch.journal import Journal, JournalError, JournalHead, JournalRecord
from djl_python.batch.results import BatchReply, TokenTotals, answered

COUNT = 6
HEAD = JournalHead("f" * 64, COUNT, "somewhere")
BODY = (
    b'{"usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, '
    b'"prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 2}}}'
)


def record(index: int, status: int = 200) -> JournalRecord:
    return JournalRecord.of(index, answered(f"r{index}", BatchReply(status, BODY)), failed=status != 200)


def written(path: Path, *indices: int) -> bytes:
    journal = Journal.open(path, HEAD)
    for index in indices:
        journal.append([record(index)])
    journal.close()
    return path.read_bytes()


def test_a_journal_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal.open(path, HEAD)
    journal.append([record(4), record(0, 400)])
    journal.close()
    journal = Journal.open(path, HEAD)
    assert (journal.done, journal.failed, journal.pending()) == (2, 1, [1, 2, 3, 5])
    assert journal.usage == TokenTotals(prompt_tokens=4, completion_tokens=6, cached_tokens=2, reasoning_tokens=4)
    journal.append([record(2)])
    assert [(one.index, one.failed) for one in journal.records()] == [(0, True), (2, False), (4, False)]
    journal.remove()
    assert not path.exists()


def test_wherever_a_kill_cuts_it_complete_records_stay_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths of a file that was being appended to: all about the ends of lines, and some between."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # which takes milliseconds, a thousand times
    path = tmp_path / "j"
    whole = written(path, 5, 1, 3)
    lines = whole.splitlines(keepends=True)
    ends = {len(b"".join(lines[:number])) for number in range(len(lines) + 1)}
    lengths = {end + around for end in ends for around in (-2, -1, 0, 1)} | set(range(0, len(whole), 37))
    for length in sorted(lengths & set(range(len(whole)))):
        path.write_bytes(whole[:length])
        complete = [sum(map(len, lines[:number])) <= length for number in range(1, len(lines) + 1)]
        with Journal.open(path, HEAD) as journal:
            assert journal.done == max(0, sum(complete) - 1)
            journal.append([record(index) for index in journal.pending()])
            assert [one.index for one in journal.records()] == list(range(COUNT))
        with Journal.open(path, HEAD) as journal:
            assert (journal.done, journal.dropped_bytes) == (COUNT, 0)


@pytest.mark.parametrize(
    "tail", [b"\0" * 4096, b'{"index": 2, "failed": false, "result": {"respo\n', b'{"index":99}\n']
)
def test_a_torn_last_line_is_cut_off_and_counted(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "j"
    whole = written(path, 0, 1)
    path.write_bytes(whole + tail)
    with Journal.open(path, HEAD) as journal:
        assert (journal.done, journal.dropped_bytes) == (2, len(tail))
    assert path.read_bytes() == whole


def test_a_second_result_of_one_request_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = written(path, 0)
    path.write_bytes(whole + whole.splitlines(keepends=True)[1])
    with Journal.open(path, HEAD) as journal:
        assert journal.done == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"hello": 1}\n', "this is not the journal of a batch"),
        (b"some text\n", "this is not the journal of a batch"),
        (b'{"input_sha256": "0", "count": 6, "journal": 1}\n', "these are results of another input"),
        (b'{"input_sha256": "0", "count": 6, "journal": 9}\n', "another version of this program"),
    ],
)
def test_a_file_of_another_kind_is_refused_and_unchanged(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(JournalError, match=message):
        Journal.open(path, HEAD)
    assert path.read_bytes() == content


def test_a_second_process_can_not_open_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal.open(path, HEAD)
    program = (
        "import sys\nfrom pathlib import Path\nfrom djl_python.batch.journal import *\n"
        f"try: Journal.open(Path({str(path)!r}), JournalHead('f' * 64, {COUNT}))\n"
        "except JournalError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert "another process is working on this batch" in run.stdout
    journal.close()


def test_a_disk_that_takes_a_part_of_a_record(tmp_path: Path) -> None:
    """A process that may write so many bytes and no more: what was complete stays, and the journal goes on."""
    path = tmp_path / "j"
    whole = written(path, 0, 1)
    program = (
        "import resource, signal\nfrom pathlib import Path\nfrom tests.batch.test_journal import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(whole) + 50},) * 2)\n"
        f"journal = Journal.open(Path({str(path)!r}), HEAD)\n"
        "try: journal.append([record(2)])\nexcept OSError as error: print(error.strerror, flush=True)\n"
        "import os; os._exit(0)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "File too large\n"
    assert path.read_bytes().startswith(whole)
    with Journal.open(path, HEAD) as journal:
        assert (journal.pending(), journal.dropped_bytes) == ([2, 3, 4, 5], 0)
