"""Children of the server: what they take over from it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import httpx
import pytest

from djl_python.testing import running_server, write_byte_tokenizer
from tests.server.harness import until

BODY = {"inputs": "ab", "parameters": {"max_new_tokens": 2}}

CUSTOM = """\
from answers import YES
from djl_python import Output


def handle(inputs):
    return Output().add(YES)
"""

LOGGING = """\
import logging


def handle(inputs):
    logging.getLogger("mine").warning("called")
"""

FULL = """\
import logging
import os
import sys

from djl_python import Output

for output in (1, 2):
    os.dup2(os.open("/dev/full", os.O_WRONLY), output)


def handle(inputs):
    print("asked")
    print("asked", file=sys.stderr, flush=True)
    logging.getLogger("mine").error("asked")
    return Output().add("answered")
"""

FOREIGN = """\
from djl_python import Output


def handle(inputs):
    print("printed 日", "\\ud800")
    return Output().add("answered")
"""

ENGINE = """\
import logging

from djl_python.testing import FakeRollingBatch


class Engine(FakeRollingBatch):
    def __init__(self, settings, progress):
        super().__init__(settings, progress)
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger("mine").log(level, "of the engine")
"""


def model_directory(path: Path, engine: str) -> Path:
    write_byte_tokenizer(path)
    (path / "config.json").write_text("{}")
    (path / "serving.properties").write_text(f"option.rolling_batch={engine}\n")
    return path


def test_a_file_of_the_model_may_be_named_like_a_library(tmp_path: Path) -> None:
    """What a worker and an engine run on is imported without the model's directory, what the user runs, with it."""
    model = model_directory(tmp_path / "model", "echo")
    for library in ("types", "queue", "tokenizers"):
        (model / f"{library}.py").write_text("raise ImportError('not the library')")
    custom = tmp_path / "custom"
    shutil.copytree(model, custom)
    (custom / "answers.py").write_text("YES = 'yes'")
    (custom / "model.py").write_text(CUSTOM)
    with running_server("-m", f"model={model},custom={custom}") as server:
        for name, answer in (("model", '{"generated_text":"ab"}'), ("custom", "yes")):
            assert httpx.post(f"{server.url}/predictions/{name}", json=BODY).text == answer


async def test_each_line_of_the_log_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(LOGGING)
    (tmp_path / "serving.properties").write_text("minWorkers=2\n")
    expected = {"a:2/0 called", "a:2/1 called", "b/0 called", "b/1 called"}

    def called() -> set[str]:
        lines = server.output().splitlines()
        told = (line.partition(" WARNING ")[2] for line in lines if line.endswith(" called"))
        return {re.sub(r"\[[0-9a-f]{32}\] ", "", line) for line in told}

    with running_server("-m", f"a:2={tmp_path},b={tmp_path}") as server:
        httpx.post(f"{server.url}/predictions/a")
        httpx.get(f"{server.url}/ping")  # the line of a request is written after its answer
        await until(lambda: called() >= expected)  # one worker of each answers, the others may still be loading
        assert re.search(r' INFO a:2 \[[0-9a-f]{32}\] 127.0.0.1 "POST /predictions/a" 204', server.output())
        assert called() == expected


def test_printed_text_that_can_not_be_encoded_fails_no_request(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FOREIGN, encoding="utf-8")
    with running_server("-m", f"model={tmp_path}", environment={"PYTHONIOENCODING": "latin-1"}) as server:
        assert httpx.post(f"{server.url}/predictions/model").text == "answered"
        assert "printed \\u65e5 \\ud800" in server.output()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without /dev/full")
def test_a_full_disk_loses_what_is_printed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FULL)
    with running_server("-m", f"model={tmp_path}") as server:
        assert httpx.post(f"{server.url}/predictions/model").text == "answered"


@pytest.mark.parametrize(("level", "heard"), [("debug", 3), ("info", 2), ("warning", 1)])
def test_workers_and_engines_log_from_the_level_of_the_command_line(tmp_path: Path, level: str, heard: int) -> None:
    model = model_directory(tmp_path / "model", "log_engine:Engine")
    (model / "log_engine.py").write_text(ENGINE)
    with running_server("-m", str(model), "--log-level", level) as server:
        lines = server.output().splitlines()
    assert len([line for line in lines if line.endswith(" model/0/engine of the engine")]) == heard
    assert any("INFO model/0 engine ready" in line for line in lines) == (level != "warning")
