import contextlib
import io
import json
import os
import shlex

import pytest

from djl_python.config import Address, ModelConfig
from djl_python.core.engine_info import EngineInfo
from djl_python.ipc.protocol import Status
from djl_python.server.announcer import Announcer, curl_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_progress_is_plain_and_rate_limited() -> None:
    err = io.StringIO()
    announcer = Announcer(io.StringIO(), err)
    config = ModelConfig(name="m")
    for done in range(1, 101):
        announcer.progress(config, Status("loading", "weights", done, 100))
    announcer.progress(config, Status("loading", "warming up"))
    assert err.getvalue().splitlines() == ["model m: weights 1/100", "model m: weights 100/100", "model m: warming up"]


def test_details_of_progress_are_rate_limited() -> None:
    for err, said in (
        (io.StringIO(), "model m: installing requirements: Collecting cow\n"),
        (Terminal(), "\r\x1b[Kmodel m: ... installing requirements: Collecting cow"),
    ):
        announcer = Announcer(io.StringIO(), err)
        for line in ("Collecting cow", "Collecting horse", "Installing"):
            announcer.progress(ModelConfig(name="m"), Status("loading", "installing requirements", current=line))
        assert err.getvalue() == said


def test_a_line_fits_into_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    err = Terminal()
    Announcer(io.StringIO(), err).progress(ModelConfig(name="m"), Status("loading", "installing", current="x" * 100))
    assert err.getvalue() == "\r\x1b[K" + "model m: ... installing: xxxxx"[:29]


def test_on_a_terminal_there_is_a_bar_that_vanishes() -> None:
    err = Terminal()
    announcer = Announcer(io.StringIO(), err)
    config = ModelConfig(name="m")
    announcer.progress(config, Status("loading", "weights", 1, 2))
    assert err.getvalue() == "\r\x1b[Kmodel m: [############............] 1/2 weights"
    announcer.ready(config, 1.25)
    assert err.getvalue().endswith("weights\r\x1b[Kmodel m: ready after 1.2 s\n")


def test_the_ready_line_names_the_engine() -> None:
    err = io.StringIO()
    announcer = Announcer(io.StringIO(), err)
    announcer.ready(ModelConfig(name="m"), 1.25, EngineInfo(runner="native", dtype="bfloat16", device="cpu"))
    assert err.getvalue() == "model m: ready after 1.2 s, on native, bfloat16, cpu\n"
    refused = EngineInfo(runner="torch-paged", quantize="int8", refusal="no list of layers", unrounded="half of them")
    announcer.ready(ModelConfig(name="n"), 3, refused)
    assert err.getvalue().splitlines()[1:] == [
        "model n: ready after 3.0 s, on torch-paged, int8 weights",
        "  warning: not on the native kernels: no list of layers. It runs on torch-paged, where steps take longer: "
        "djl-serving bench measures how long.",
        "  warning: not all weights are int8: half of them",
    ]


def test_a_closed_terminal_ends_no_announcement() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as gone:
        announcer = Announcer(gone, gone)
        announcer.progress(ModelConfig(name="m"), Status("loading", "weights"))
        announcer.failed(ModelConfig(name="m"), "KeyError")
        announcer.serving(Address(), [(ModelConfig(name="m"), "")], only=True)
        with contextlib.suppress(BrokenPipeError):
            gone.close()


def test_a_failure_is_one_block() -> None:
    err = io.StringIO()
    Announcer(io.StringIO(), err).failed(
        ModelConfig(name="m", path="/models/m"), "model.py:3: in handle\nKeyError: 'a'\n"
    )
    assert err.getvalue() == "\nmodel m failed to load (/models/m):\n  model.py:3: in handle\n  KeyError: 'a'\n\n"


def test_urls_are_shown_without_what_may_be_secret() -> None:
    err = io.StringIO()
    announcer = Announcer(io.StringIO(), err)
    config = ModelConfig(name="m", url="https://u:hidden@h/m.zip?hidden")
    announcer.list_models([config])
    announcer.failed(config, "why")
    assert err.getvalue() == "model m: https://h/m.zip\n\nmodel m failed to load (https://h/m.zip):\n  why\n\n"


def test_found_models_are_listed_with_their_warnings() -> None:
    err = io.StringIO()
    config = ModelConfig(name="m", version="2", path="/models/m", warnings=("serving.properties:1: odd",))
    Announcer(io.StringIO(), err).list_models([config])
    assert err.getvalue().splitlines() == ["model m version 2: /models/m", "  warning: serving.properties:1: odd"]


def test_the_ready_block_has_a_command_for_each_model() -> None:
    out = io.StringIO()
    models = [(ModelConfig(name="a"), json.dumps({"inputs": "it's"})), (ModelConfig(name="b", version="1.0"), "")]
    Announcer(out, io.StringIO()).serving(Address("0.0.0.0", 9000), models, only=False, console=True)
    lines = out.getvalue().splitlines()
    assert "djl-serving is ready at http://0.0.0.0:9000" in lines
    assert "  http://127.0.0.1:9000/console" in lines
    commands = [shlex.split(line) for line in lines if "curl" in line]
    assert [command[1] for command in commands] == [
        "http://127.0.0.1:9000/predictions/a",
        "http://127.0.0.1:9000/predictions/b/1.0",
    ]
    assert json.loads(commands[0][-1]) == {"inputs": "it's"}
    assert lines[-2].endswith("-d @request.json   # a file with what the handler reads")


def test_a_unix_socket_is_reached_by_its_path() -> None:
    line = curl_line(Address(unix_path="/tmp/a b.sock"), ModelConfig(name="m"), "", only=True)
    assert shlex.split(line)[:4] == ["curl", "--unix-socket", "/tmp/a b.sock", "http://localhost/invocations"]


def test_a_server_that_asks_for_keys_says_where_one_goes() -> None:
    line = curl_line(Address(), ModelConfig(name="m"), "", only=True, keys=True)
    assert shlex.split(line)[1:4] == ["http://127.0.0.1:8080/invocations", "-H", "Authorization: Bearer $KEY"]
