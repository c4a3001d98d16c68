"""Children of the server: what they take over from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.testing import running_server, write_byte_tokenizer

ENGINE = """\
import logging

from djl_python.testing import FakeRollingBatch


class Engine(FakeRollingBatch):
    def __init__(self, settings, progress):
        super().__init__(settings, progress)
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger("mine").log(level, "of the engine")
"""


@pytest.mark.parametrize(("level", "heard"), [("debug", 3), ("info", 2), ("warning", 1)])
def test_workers_and_engines_log_from_the_level_of_the_command_line(tmp_path: Path, level: str, heard: int) -> None:
    model = write_byte_tokenizer(tmp_path / "model")
    (model / "log_engine.py").write_text(ENGINE)
    (model / "config.json").write_text("{}")
    (model / "serving.properties").write_text("option.rolling_batch=log_engine:Engine\n")
    with running_server("-m", str(model), "--log-level", level) as server:
        lines = server.output().splitlines()
    assert len([line for line in lines if line.endswith(" engine of the engine")]) == heard
    assert any("INFO worker engine ready" in line for line in lines) == (level != "warning")
