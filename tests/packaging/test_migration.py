"""Each row of docs/migration.md: settings become what it says, calls are answered, commands serve, imports work."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pexpect
import pytest

from djl_python.commands.handler_check import handler_of
from djl_python.config import ModelConfig, ModelSpec, Options, ServerConfig, ServingSettings
from djl_python.config.binding import Setting, settings_of
from djl_python.config.server_loading import load_server_config
from djl_python.core.errors import ConfigError
from djl_python.sources import load_model_config
from djl_python.testing import RunningServer, running_server
from tests.conftest import DEMO
from tests.packaging.migration import (
    BUILT_IN,
    IMAGES,
    NO_EFFECT,
    REFUSED,
    SAME,
    WARNED,
    Row,
    alternatives,
    as_option,
    rows,
    settings,
    spans,
)

ROWS = rows()
CALLS = [row for row in ROWS if row.call]
COMMANDS = [row for row in ROWS if row.command]
IMPORTS = [row for row in ROWS if row.statement]
SETTINGS = [row for row in ROWS if row not in (*CALLS, *COMMANDS, *IMPORTS)]


def named(rows: Iterable[Row]) -> list[Any]:
    return [pytest.param(row, id=f"{row.section}: {row.theirs}") for row in rows]


def test_every_server_has_rows_of_each_kind() -> None:
    servers = ["DJL Serving and LMI", "Text Generation Inference", "vLLM", "Triton", "Ollama", "LitServe and FastAPI"]
    for kind in (CALLS, COMMANDS, SETTINGS):
        assert list(dict.fromkeys(row.section for row in kind)) == servers


MODEL_KEYS = {setting.key for setting in settings_of(ServingSettings)}
SERVER_KEYS = {setting.key for setting in settings_of(ServerConfig)}
#: Fields that the server has as defaults of models', which a model's configuration shows.
SHARED = {setting.field for struct in (ServingSettings, Options) for setting in settings_of(struct)} | {"provenance"}


def read(given: Mapping[str, str], folder: Path) -> tuple[ModelConfig, ServerConfig]:
    """The configuration of a model, and of its server, with these settings, each where it belongs."""
    variables = {key: value for key, value in given.items() if key.isupper()}
    of_server = {key: given[key] for key in given if key in SERVER_KEYS - MODEL_KEYS}
    of_model = {key: given[key] for key in given if key not in {*variables, *of_server}}
    folder.mkdir()
    (folder / "model.py").touch()
    for file, values in (("serving.properties", of_model), ("config.properties", of_server)):
        (folder / file).write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
    variables["DJL_CACHE_DIR"] = str(folder / "cache")  # no engine is installed there
    server = load_server_config(folder / "config.properties", {}, variables)
    return load_model_config(ModelSpec(name="model", url=str(folder)), server, variables), server


def effective(given: Mapping[str, str], folder: Path, *, warning: str = "") -> dict[str, Any]:
    """What these settings come to, where a warning has the words of `warning`, or none is there."""
    model, server = read(given, folder)
    assert [warning in said for said in model.warnings] == [True] * bool(warning), model.warnings
    kept = {name: value for name, value in msgspec.structs.asdict(server).items() if name not in SHARED}
    serving = msgspec.structs.replace(model.serving, engine=model.engine)
    return {"serving": serving, "option": model.option, "engine": model.engine_options, **kept}


def theirs(row: Row) -> dict[str, str]:
    """What of the first cell is taken here as it stands; vLLM's flags as options of their names."""
    if row.section in ("Triton", "Ollama", "LitServe and FastAPI"):
        return {}
    taken = settings(row.theirs)
    return as_option(spans(row.theirs)[0]) if row.section == "vLLM" and row.ours == NO_EFFECT else taken


@pytest.mark.parametrize("row", named(row for row in SETTINGS if row.ours == REFUSED))
def test_refused_settings(row: Row, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read(theirs(row), tmp_path / "theirs")


@pytest.mark.parametrize("row", named(row for row in SETTINGS if row.ours == NO_EFFECT))
def test_settings_without_effect(row: Row, tmp_path: Path) -> None:
    config = effective(theirs(row), tmp_path / "theirs", warning="has no effect")
    assert config == effective({}, tmp_path / "unset")


@pytest.mark.parametrize("row", named(row for row in SETTINGS if row.ours == BUILT_IN))
def test_entry_points_of_the_built_in_handler(row: Row, tmp_path: Path) -> None:
    checkpoint = {"option.model_id": str(DEMO)}
    with_entry_point, _ = read({**theirs(row), **checkpoint}, tmp_path / "theirs")
    plain, _ = read(checkpoint, tmp_path / "plain")
    for config in (with_entry_point, plain):
        (Path(config.path) / "model.py").unlink()
    assert handler_of(with_entry_point) == handler_of(plain)


BECOMING = [row for row in SETTINGS if row.ours not in (REFUSED, NO_EFFECT, BUILT_IN)]


@pytest.mark.parametrize("row", named(BECOMING))
def test_settings_become_what_the_row_says(row: Row, tmp_path: Path) -> None:
    """Whichever way they are written, the configuration is the same one."""
    warning = "this engine is not available here" if WARNED in row.ours else ""

    def warning_of(given: Mapping[str, str]) -> str:
        if "gpu" in given.get("load_on_devices", ""):
            return "there is no GPU"
        return warning if {"vllm", "trtllm"} & {*given.values()} else ""

    here = [
        effective(each, tmp_path / f"here {index}", warning=warning_of(each))
        for index, each in enumerate(alternatives(row.here))
    ]
    there = [effective(theirs(row), tmp_path / "theirs", warning=warning)] if theirs(row) and row.ours != SAME else []
    assert here and all(each == here[0] for each in (*here, *there))
    for index, each in enumerate(alternatives(row.here)):
        if all(key.isupper() for key in each):  # a variable that nobody reads would change nothing
            assert here[index] != effective({}, tmp_path / f"unset {index}")


@pytest.mark.parametrize("row", named(BECOMING))
def test_settings_here_have_the_values_that_are_shown(row: Row, tmp_path: Path) -> None:
    for index, given in enumerate(alternatives(row.here)):
        model, server = read(given, tmp_path / str(index))
        values = {
            **of(server),
            **of(model.serving),
            **of(model.option, "option."),
        }  # of a key that both have, the model's
        told = {**server.provenance, **model.provenance}
        for key in given.keys() & values.keys() - {"option.rolling_batch"}:  # which names what is here
            setting, value = values[key]
            assert (value, told[key] != "default") == (setting.parse(given[key]), True)


def of(struct: msgspec.Struct, prefix: str = "") -> dict[str, tuple[Setting, Any]]:
    """The settings of a configuration with their values, by key."""
    return {setting.key: (setting, getattr(struct, setting.field)) for setting in settings_of(type(struct), prefix)}


@pytest.mark.parametrize("row", named(SETTINGS))
def test_numbers_stay(row: Row) -> None:
    """But for other units (minutes, microseconds), and for words that stand for numbers."""
    numbers = set(re.findall(r"(?<![\w.])\d+(?![\w.])", row.theirs.replace('"', "")))
    if row.section in ("Triton", "LitServe and FastAPI") or row.ours in (NO_EFFECT, REFUSED, BUILT_IN):
        return
    if "=cpu" in row.ours or "OTEL_" in row.ours:  # gRPC's port is another one
        return
    assert numbers <= set(re.findall(r"\d+", row.here))


#: What any request to a path has, before the row's own fields.
PROMPT = "What is deep learning?"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "demo", "messages": [{"role": "user", "content": PROMPT}]},
    "/chat_tokenize": {"messages": [{"role": "user", "content": PROMPT}]},
    "/v1/completions": {"model": "demo", "prompt": PROMPT},
    "/v1/embeddings": {"model": "demo", "input": PROMPT},
    "/v2/models/demo/generate": {"text_input": PROMPT},
    "/v2/models/demo/generate_stream": {"text_input": PROMPT},
    "/v2/models/demo/infer": {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}]},
    "/v2/repository/index": {},
}


@pytest.mark.parametrize("row", named(CALLS))
def test_calls_are_answered_as_the_row_says(row: Row, demo: RunningServer) -> None:
    call = row.call
    assert call is not None
    prompt = {} if call.fields.keys() & {"prompt", "messages", "tokens"} else {"inputs": PROMPT}
    body = {**copy.deepcopy(BODIES.get(call.path, prompt)), **call.fields}
    answer = httpx.request(
        call.method, f"{demo.url}{call.path}", json=body if call.method == "POST" else None, timeout=60
    )
    if row.ours == REFUSED:
        assert 400 <= answer.status_code < 500, answer.text
        return
    assert answer.status_code == 200, answer.text
    ignored = answer.headers.get("x-ignored-parameters", "").split(", ")
    if row.ours == NO_EFFECT:
        assert ignored == list(call.fields["parameters"])
    elif variables := call.fields.get("chat_template_kwargs"):  # the demo's template reads none
        assert ignored == [f"chat_template_kwargs.{name}" for name in variables]
    else:
        assert ignored == [""]
        assert "error" not in answer.text.partition('"message"')[0] or call.method == "GET"


MODEL = """
from djl_python import Output

def handle(inputs):
    return None if inputs.is_empty() else Output().add("here")
"""


def command_of(row: Row, model: Path) -> tuple[dict[str, str], list[str]]:
    """The variables and the arguments of the row's `djl-serving`, for a model in a directory of models.

    Of `docker run`, those that docker/entrypoint.sh passes on; a mount at /opt/ml/model is served as `-s` serves it.
    """
    words = row.command
    at = next(index for index, word in enumerate(words) if word in IMAGES)
    before, arguments = words[:at], words[at + 1 :]
    if before[:2] == ["docker", "run"]:
        mounts = [mount.split(":") for option, mount in pairwise(before) if option == "-v"]
        arguments = arguments or [
            word for source, target, *_ in mounts if target == "/opt/ml/model" for word in ("-s", source)
        ]
        before = []
    for option in ("--host", "--port"):  # the test's own
        if option in arguments:
            del arguments[arguments.index(option) : arguments.index(option) + 2]
    places = {"MODELS": str(model.parent), "hf://owner/model": str(model), "DIR": str(model)}
    pattern = re.compile(r"\b(" + "|".join(places) + r")\b")
    before, arguments = (
        [pattern.sub(lambda match: places[match[0]], word) for word in part] for part in (before, arguments)
    )
    return dict(word.split("=", 1) for word in before), arguments


SUBCOMMANDS = ("batch", "bench", "chat", "check", "pull", "run")
SERVING = [row for row in COMMANDS if command_of(row, Path("/x"))[1][:1] not in [[name] for name in SUBCOMMANDS]]


@pytest.mark.slow
@pytest.mark.parametrize("row", named(SERVING))
def test_commands_serve(row: Row, tmp_path: Path) -> None:
    model = tmp_path / "models" / "lines"
    model.mkdir(parents=True)
    (model / "model.py").write_text(MODEL, encoding="utf-8")
    environment, arguments = command_of(row, model)
    with running_server(*arguments, environment=environment) as server:
        (listed,) = httpx.get(f"{server.url}/v1/models").json()["data"]
        named = re.search(r"(\S+?)(?:::\S*)?=/", " ".join(arguments))
        assert listed["id"] == (named[1] if named else "lines")
        answer = httpx.post(f"{server.url}/invocations", params={"model_name": listed["id"]}, content="?")
        assert answer.text == "here"


ANSWER = "Deep learning is a branch of machine learning"


@pytest.mark.slow
@pytest.mark.parametrize("row", named(row for row in COMMANDS if row not in SERVING))
def test_commands_do_what_the_other_servers_do(row: Row, demo: RunningServer, tmp_path: Path) -> None:
    environment, arguments = command_of(row, DEMO)
    assert not environment
    command = [
        sys.executable,
        "-m",
        "djl_python",
        *(word.replace("http://127.0.0.1:8080", demo.url) for word in arguments),
    ]
    if arguments[0] == "chat":
        terminal = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "XDG_STATE_HOME": str(tmp_path)}
        with pexpect.spawn(command[0], command[1:], env=terminal, timeout=60, encoding="utf-8") as child:
            child.expect(r">>>.*\x1b\[\?25h")  # the prompt reads keys
            child.send("What is deep learning?\r")
            child.expect(ANSWER)
        return
    (tmp_path / "in.jsonl").write_text('{"prompt": "What is deep learning?"}\n', encoding="utf-8")
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    if arguments[0] == "bench":
        assert re.search(r"^\| *8 \|", ran.stdout, re.MULTILINE), ran.stdout
    elif arguments[0] == "check":
        assert "\nloaded\n" in ran.stdout
    elif arguments[0] == "pull":
        assert Path(ran.stdout.strip().splitlines()[-1].split()[-1]).exists(), ran.stdout
    else:
        assert ANSWER in ran.stdout + "".join(path.read_text("utf-8") for path in tmp_path.glob("out.jsonl"))


def test_imports_work() -> None:
    program = "\n".join(row.statement for row in IMPORTS)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert program and (ran.returncode, ran.stderr) == (0, "")
