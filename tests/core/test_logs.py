import asyncio
import io
import json
import logging
import re
import subprocess
import sys

import pytest

from djl_python.core import logs


def test_a_record_is_one_line_with_time_level_and_model() -> None:
    stream = io.StringIO()
    logs.configure("info", stream)
    log = logging.getLogger("somewhere")
    log.info("hello %s", "you", extra={"model": "m"})
    log.warning("of no model")
    log.debug("unheard")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO m hello you", first)
    assert second.endswith("Z WARNING - of no model")


def test_the_line_for_each_request_can_be_left_out() -> None:
    stream = io.StringIO()
    logs.configure("warning", stream)
    logging.getLogger("djl_python.access").info("GET /")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *((name, name) for name in logs.LEVELS),
        ("TRACE", "debug"),
        ("Warn", "warning"),
        ("FATAL", "off"),
        ("off", "off"),
    ],
)
def test_a_level_that_is_changed_is_that_of_processes_to_come(name: str, level: str) -> None:
    logs.set_level(name)
    assert logs.level() == level
    assert logging.getLogger().isEnabledFor(logging.CRITICAL) is (name.lower() not in ("fatal", "off"))
    assert logging.getLogger("tornado").level >= logging.WARNING


def test_a_line_names_the_request_that_its_task_works_on() -> None:
    stream = io.StringIO()
    logs.configure("info", stream)

    async def work(request_id: str) -> None:
        logs.work_on(request_id)
        await asyncio.sleep(0)
        logging.info("works")

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    with logs.about("c"):
        logging.info("within")
    logging.info("outside")
    logging.info("its own", extra={"request_id": "d"})
    told = [line.partition(" - ")[2] for line in stream.getvalue().splitlines()]
    assert told == ["[a] works", "[b] works", "[c] within", "outside", "[d] its own"]


def test_json_has_what_text_has_and_the_arguments_by_name() -> None:
    stream = io.StringIO()
    logs.configure("info", stream, "m/0", "json")
    logging.getLogger("some").warning(
        "%(count)d of %(what)s\nin two lines", {"count": 3, "what": "them", "level": "no"}
    )
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.exception("failed", extra={"model": "other", "request_id": "r", "trace_id": "t"})
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "WARNING",
        "name": "m/0",
        "logger": "some",
        "message": "3 of them\nin two lines",
        "count": 3,
        "what": "them",
    }
    assert (second["name"], second["request_id"], second["trace_id"]) == ("other", "r", "t")
    assert "ValueError: wrong" in second["exception"]


def test_printed_lines_and_the_last_traceback_are_json() -> None:
    program = """
import sys
from djl_python.core import logs
logs.configure("error", log_format="json")
print("to stdout"); print("half a ", end=""); print("line")
print("to stderr", file=sys.stderr)
sys.stdout.buffer.write(b"\\xff bytes\\n")
raise ValueError("the end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("stdout", "to stdout"),
        ("stdout", "half a line"),
        ("stderr", "to stderr"),
        ("stdout", "\\xff bytes"),
        ("python", "the end"),
    ]
    assert "Traceback" in lines[-1]["exception"]
