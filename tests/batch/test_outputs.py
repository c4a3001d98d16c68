from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from djl_python.batch.journal import Journal, JournalHead, JournalRecord
from djl_python.batch.lines import InputFile
from djl_python.batch.outputs import Gap, write_outputs
from djl_python.batch.results import EXPIRED, BatchReply, answered
from tests.batch.inputs import ids, line, read, scanned


@contextmanager
def journal_of(folder: Path, source: InputFile, *done: tuple[int, int]) -> Iterator[Journal]:
    """A journal with results of these (index, status)."""
    with Journal.open(folder / "j", JournalHead(source.sha256, source.count)) as journal:
        for index, status in done:
            reply = BatchReply(status, b'{\n "said": 1 }', "abc")
            journal.append([JournalRecord.of(index, answered(f"r{index}", reply), failed=reply.failed)])
        yield journal


def test_outputs_are_in_the_inputs_order(tmp_path: Path) -> None:
    source = scanned(tmp_path, *(line(f"r{number}") for number in range(5)))
    output, errors = tmp_path / "out", tmp_path / "err"
    with journal_of(tmp_path, source, (4, 200), (0, 400), (2, 200), (1, 200), (3, 200)) as journal:
        assert write_outputs(journal, output, errors, source) == 1
    assert (ids(output), ids(errors)) == (["r1", "r2", "r3", "r4"], ["r0"])
    output_line = read(output)[0]
    assert output_line.pop("id").startswith("batch_req_")
    assert output_line == {
        "custom_id": "r1",
        "response": {"status_code": 200, "request_id": "abc", "body": {"said": 1}},
        "error": None,
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["err", "in.jsonl", "j", "out"]


def test_a_file_without_lines_is_not_made(tmp_path: Path) -> None:
    source = scanned(tmp_path, line("r0"))
    with journal_of(tmp_path, source, (0, 200)) as journal:
        assert write_outputs(journal, tmp_path / "out", tmp_path / "err", source) == 0
    assert not (tmp_path / "err").exists()


def test_requests_without_a_result_get_the_reason(tmp_path: Path) -> None:
    source = scanned(tmp_path, *(line(f"r{number}") for number in range(3)))
    gap = Gap(EXPIRED, "too late")
    with journal_of(tmp_path, source, (1, 200)) as journal:
        assert write_outputs(journal, tmp_path / "out", tmp_path / "err", source, gap) == 2
    assert ids(tmp_path / "out") == ["r1"]
    assert [(one["custom_id"], one["response"], one["error"]) for one in read(tmp_path / "err")] == [
        (name, None, {"code": "batch_expired", "message": "too late"}) for name in ("r0", "r2")
    ]


def test_a_body_that_is_no_json_is_a_string(tmp_path: Path) -> None:
    source = scanned(tmp_path, line("r0"))
    with journal_of(tmp_path, source) as journal:
        journal.append([JournalRecord.of(0, answered("r0", BatchReply(200, b"\xffplain\ntext")), failed=False)])
        write_outputs(journal, tmp_path / "out", tmp_path / "err", source)
    assert read(tmp_path / "out")[0]["response"]["body"] == "\ufffdplain\ntext"
