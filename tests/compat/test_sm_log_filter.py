"""Lines with SageMaker's markers become metrics; others do not pass."""

from __future__ import annotations

import logging

from djl_python import __version__
from djl_python.sm_log_filter import SMLogFilter


def record(message: object) -> logging.LogRecord:
    return logging.LogRecord("name", logging.INFO, "path", 1, message, None, None)


def test_a_marked_line_is_a_metric() -> None:
    own = SMLogFilter()
    line = "SysHealth: LLM sharding latency: 845.62 secs"
    made = [own.filter(record(line)).msg for _ in range(2)]
    assert made == [f"SysHealth.Count:{n}|#DJLServing:{__version__},LLMShardingLatency:845.62 secs" for n in (1, 2)]
    assert own.counter["LLMShardingLatency"] == 2


def test_other_lines_do_not_pass_the_filter() -> None:
    own = SMLogFilter()
    for line in ("hello", "Mine: a b: 1 secs", "SysHealth: no number", 5):
        assert own.filter(record(line)) is False


def test_as_a_filter_of_a_handler() -> None:
    seen = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    handler = Collect()
    handler.addFilter(SMLogFilter())
    for line in ("hello", "UserScriptError: load failures: 1 times"):
        handler.handle(record(line))
    assert seen == [f"UserScriptError.Count:1|#DJLServing:{__version__},LoadFailures:1 times"]
