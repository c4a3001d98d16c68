import io
import logging
import re
from collections.abc import Iterator

import pytest

from djl_python.core import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


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
