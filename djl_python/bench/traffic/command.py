"""The options of `djl-serving bench` for traffic: --record, --replay, --compare.

Exit codes: 0 it was recorded, or played and all answers were as expected; 1 some were not: another status than was
recorded, or a difference between two servers.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ...ipc import event_loop
from ..arguments import headers_of
from ..load import percentile
from .differences import VOLATILE, VOLATILE_ENDS, Difference, differences
from .player import Played, play
from .proxy import serve_until_stopped
from .recording import Privacy, RecordedRequest, Recorder, RecordingHead, read

#: Requests of a replay that are under way at a time.
MOST_UNDER_WAY: Final = 1024
_INDEX: Final = re.compile(r"\[\d+\]")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group(
        "traffic",
        "Record what clients send to TARGET, play it again, and see where two servers differ. Recordings have no "
        "Authorization, cookies or other headers but those that change answers, and no keys of queries.",
    )
    what = group.add_mutually_exclusive_group()
    what.add_argument("--record", type=Path, metavar="FILE", help="pass requests on to TARGET, and keep them")
    what.add_argument("--replay", type=Path, metavar="FILE", help="play a recording against TARGET")
    group.add_argument("--listen", default="127.0.0.1:8081", metavar="HOST:PORT", help="with --record")
    group.add_argument("--no-bodies", action="store_true", help="with --record: leave bodies out")
    group.add_argument(
        "--redact", action="append", default=[], metavar="FIELD", help="with --record: replace the text of this field"
    )
    group.add_argument("--keep-header", action="append", default=[], metavar="NAME", help="with --record: keep it too")
    group.add_argument("--speed", type=_speed, default=1.0, metavar="X", help="with --replay: 2 is twice as fast")
    group.add_argument("--compare", metavar="URL", help="with --replay: play it to this server too, and compare")
    group.add_argument(
        "--ignore", action="append", default=[], metavar="NAME", help="with --compare: values that may differ"
    )


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a positive number")
    return speed


def run(options: argparse.Namespace, url: str) -> int:
    """Record or replay, as the options say; returns the exit code.

    Raises:
        ValueError: the recording can't be read, or the address is none.
        RuntimeError: files or sockets can't be opened.
    """
    try:
        if options.record:
            return event_loop.run(_record(options, url))
        return event_loop.run_stoppable(_replay(options, url))
    except OSError as exc:
        raise RuntimeError(str(exc)) from exc


# ------------------------------------------------------------------------------------------------ record


async def _record(options: argparse.Namespace, url: str) -> int:
    host, colon, port = options.listen.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"--listen {options.listen}: expected HOST:PORT")
    names = frozenset(name.lower() for name in options.keep_header)
    privacy = Privacy(not options.no_bodies, frozenset(options.redact), names)
    recorder = Recorder(options.record, RecordingHead(time.time(), url))
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await serve_until_stopped(url, host, int(port), recorder, privacy)
    finally:
        recorder.close()
    print(f"{recorder.count} requests are in {options.record}")
    return 0


# ------------------------------------------------------------------------------------------------ replay


async def _replay(options: argparse.Namespace, url: str) -> int:
    entries = _Playable(options.replay)
    urls = [url, *([options.compare] if options.compare else [])]
    report: _Replay | _Compare = _Compare(urls, options.ignore) if options.compare else _Replay()
    async for entry, answers in play(
        entries,
        urls,
        speed=options.speed,
        headers=headers_of(options),
        timeout_s=options.timeout,
        most=MOST_UNDER_WAY,
    ):
        report.add(entry, answers)
    if entries.without_body:
        print(f"{entries.without_body} requests were recorded without their bodies: left out", file=sys.stderr)
    return report.end()


class _Playable:
    """The requests of a recording that have their bodies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.without_body = 0

    def __iter__(self) -> Iterator[RecordedRequest]:
        # A request is recorded when its answer has ended; at_s is when it came.
        for entry in sorted(read(self._path), key=lambda entry: entry.at_s):
            if entry.body is None and entry.body_bytes:
                self.without_body += 1
            else:
                yield entry


class _Replay:
    """The outcome of a replay, compared with the recording."""

    def __init__(self) -> None:
        self._rows: list[tuple[RecordedRequest, Played]] = []

    def add(self, entry: RecordedRequest, answers: Sequence[Played]) -> None:
        """Count an answer, and print it if its status differs."""
        (answer,) = answers
        self._rows.append((entry, answer))
        if answer.status != entry.status:
            print(f"{_name(len(self._rows), entry)}: status {entry.status} was recorded, {_status(answer)} came")

    def end(self) -> int:
        """Print the summary; returns the exit code."""
        wrong = sum(entry.status != answer.status for entry, answer in self._rows)
        print(f"{len(self._rows)} requests, {len(self._rows) - wrong} with the status that was recorded")
        recorded = [entry.duration_s for entry, _ in self._rows]
        played = [answer.duration_s for _, answer in self._rows]
        first = [answer.first_s for _, answer in self._rows]
        for name, values in (("recorded", recorded), ("played", played), ("played, to the first byte", first)):
            p50, p99 = (percentile(values, percent) or 0.0 for percent in (50, 99))
            print(f"{name}: p50 {p50 * 1e3:,.0f} ms, p99 {p99 * 1e3:,.0f} ms")
        return 1 if wrong else 0


class _Compare:
    """Where two servers' answers differ."""

    def __init__(self, urls: Sequence[str], ignored: Sequence[str]) -> None:
        self._urls = urls
        self._ignored = ignored
        self._count = self._different = self._sampled = 0
        self._places: Counter[str] = Counter()

    def add(self, entry: RecordedRequest, answers: Sequence[Played]) -> None:
        """Compare two answers, and print their differences."""
        first, second = answers
        self._count += 1
        diffs = differences(first, second, ignored=self._ignored)
        if not diffs:
            return
        self._different += 1
        self._sampled += _samples(entry)
        self._places.update(_place(difference) for difference in diffs)
        print("\n  ".join([_name(self._count, entry), *map(str, diffs)]))

    def end(self) -> int:
        """Print the summary; returns the exit code."""
        print(f"{self._count - self._different} of {self._count} answers are the same at {' and '.join(self._urls)}")
        for place, count in self._places.most_common():
            print(f"  {count:5} differ at {place}")
        if self._sampled:
            print(f"{self._sampled} of them may sample without a seed: what they say differs between any two answers")
        ends = ", ".join(f"*{end}" for end in VOLATILE_ENDS)
        print(f"not compared: {', '.join(sorted(VOLATILE | set(self._ignored)))}, {ends}")
        return 1 if self._different else 0


def _place(difference: Difference) -> str:
    return _INDEX.sub("[]", difference.path)


def _name(number: int, entry: RecordedRequest) -> str:
    return f"#{number} {entry.method} {entry.path}"


def _status(answer: Played) -> str:
    return answer.failure or str(answer.status)


class _Sampling(msgspec.Struct):
    do_sample: bool | None = None
    temperature: float | None = None
    seed: int | None = None
    parameters: dict[str, object] | None = None


def _samples(entry: RecordedRequest) -> bool:
    """Whether a request's answer may be another each time."""
    try:
        sampling = msgspec.json.decode(entry.content, type=_Sampling)
        inner = msgspec.convert(sampling.parameters or {}, _Sampling)
    except msgspec.MsgspecError:
        return False
    if sampling.seed is not None or inner.seed is not None:
        return False
    is_openai = entry.path.startswith("/v1/")
    asked = any(body.do_sample or (body.temperature or 0) > 0 for body in (sampling, inner))
    return asked or (is_openai and sampling.temperature is None)
