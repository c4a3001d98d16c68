from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from djl_python.batch import runner
from djl_python.batch.journal import Journal, JournalHead
from djl_python.batch.lines import InputFile, RequestLine
from djl_python.batch.results import BatchReply
from djl_python.batch.runner import GivenUpError, NoReplyError, NotTakenError, Run
from tests.batch.inputs import line, scanned

COUNT = 200
OK = BatchReply(200, b"{}")


@pytest.fixture
def source(tmp_path: Path) -> InputFile:
    return scanned(tmp_path, *(line(f"r{number}") for number in range(COUNT)))


@pytest.fixture
def journal(source: InputFile) -> Iterator[Journal]:
    with journal_of(source) as made:
        yield made


def journal_of(source: InputFile) -> Journal:
    return Journal.open(source.path.with_name("j"), JournalHead(source.sha256, source.count))


class Server:
    """Answers, or does what `answer` does instead; counts how many requests it has had, and at a time."""

    def __init__(self, answer: Callable[[RequestLine, int], BatchReply] = lambda request, number: OK) -> None:
        self.answer = answer
        self.asked: Counter[str] = Counter()
        self.running = self.most = 0

    async def send(self, request: RequestLine) -> BatchReply:
        self.asked[request.custom_id] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            return self.answer(request, self.asked[request.custom_id])
        finally:
            self.running -= 1


async def test_every_request_is_answered_once_and_so_many_at_a_time(source: InputFile, journal: Journal) -> None:
    server = Server()
    await Run(source, journal, server.send, 7).run()
    assert (journal.done, journal.failed, server.most) == (COUNT, 0, 7)
    assert set(server.asked.values()) == {1} and len(server.asked) == COUNT


async def test_a_request_that_is_refused_is_not_retried(source: InputFile, journal: Journal) -> None:
    server = Server(lambda request, number: BatchReply(400, b"{}") if request.custom_id == "r3" else OK)
    await Run(source, journal, server.send, 7).run()
    assert [(one.index, one.failed) for one in journal.records() if one.failed] == [(3, True)]
    assert server.asked["r3"] == 1


async def test_a_full_server_is_waited_for(
    source: InputFile, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "FIRST_WAIT_S", 0.0)

    def answer(request: RequestLine, number: int) -> BatchReply:
        if number < 3:
            raise NotTakenError("full")
        return OK

    server = Server(answer)
    await Run(source, journal, server.send, 7).run()
    assert (journal.done, journal.failed) == (COUNT, 0)
    assert set(server.asked.values()) == {3}


async def test_a_request_that_ends_the_server_does_not_cost_others_theirs(source: InputFile, journal: Journal) -> None:
    """All that run beside it fail with it; these are tried again, alone, and only it has an error."""
    asked, at_once = Counter[str](), set[str]()
    beside: set[str] = set()  # requests that were tried again while another ran

    async def send(request: RequestLine) -> BatchReply:
        name = request.custom_id
        asked[name] += 1
        if at_once and asked[name] > 1:
            beside.add(name)
        at_once.add(name)
        await asyncio.sleep(0)
        ends = name == "r5" or ("r5" in at_once and asked[name] == 1)
        at_once.discard(name)
        if ends:
            raise NoReplyError("the connection ended")
        return OK

    await Run(source, journal, send, 4).run()
    assert asked["r5"] == 2 and sum(asked.values()) > COUNT + 1
    assert not beside
    (failed,) = (one for one in journal.records() if one.failed)
    assert failed.index == 5 and b'"no_answer"' in bytes(failed.result)


@pytest.mark.parametrize("status", [500, 424])
async def test_a_servers_error_is_tried_once_more(source: InputFile, journal: Journal, status: int) -> None:
    server = Server(
        lambda request, number: OK if number > 1 or request.custom_id != "r9" else BatchReply(status, b"{}")
    )
    await Run(source, journal, server.send, 7).run()
    assert (journal.failed, server.asked["r9"]) == (0, 2)


async def test_a_server_that_is_away_for_too_long_is_given_up(
    source: InputFile, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "FIRST_WAIT_S", 0.0)

    def answer(request: RequestLine, number: int) -> BatchReply:
        if int(request.custom_id[1:]) > 100:
            raise NotTakenError("gone")
        return OK

    with pytest.raises(GivenUpError, match="gone"):
        await Run(source, journal, Server(answer).send, 3, patience_s=0.05).run()
    assert (journal.done, journal.failed) == (101, 0)


@pytest.mark.parametrize("stopped_after", [1, 17, 64, 150])
async def test_a_run_that_is_stopped_goes_on(source: InputFile, stopped_after: int) -> None:
    """Whenever it is: no request is lost, and none has two results."""
    reached, asked = asyncio.Event(), Server()

    async def send(request: RequestLine) -> BatchReply:
        if sum(asked.asked.values()) == stopped_after:
            reached.set()
        return await asked.send(request)

    with journal_of(source) as journal:
        task = asyncio.ensure_future(Run(source, journal, send, 5).run())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with journal_of(source) as journal:
        done, rest = journal.done, Server()
        assert done >= stopped_after - 5
        await Run(source, journal, rest.send, 5).run()
        assert sum(rest.asked.values()) == COUNT - done
        assert [one.index for one in journal.records()] == list(range(COUNT))
