import configparser
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from djl_python.config import PROCESS_NEEDS, ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.server.environments.interpreter import (
    BUILT_IN_NEEDS,
    LEAST_PYTHON,
    Interpreter,
    interpreter_of,
    name_of,
    needs_of,
)
from tests.server.environments.packages import OURS

Named = Callable[[str], ModelConfig]


@pytest.fixture
def named(tmp_path: Path) -> Named:
    """Models that name an interpreter: a path, or a script that is made of what it prints."""

    def make(executable: str) -> ModelConfig:
        return ModelConfig(
            name="m",
            path=str(tmp_path),
            option=Options(python_executable=executable),
            provenance={"option.pythonExecutable": "serving.properties:1"},
        )

    return make


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path.name


def test_interpreters_are_checked_for_what_setup_cfg_requires() -> None:
    setup = configparser.ConfigParser()
    setup.read(OURS.parent / "setup.cfg")
    assert setup["options"]["python_requires"] == f">={'.'.join(map(str, LEAST_PYTHON))}"
    required = {name_of(line): line for line in setup["options"]["install_requires"].split("\n") if line}
    for need in (*PROCESS_NEEDS, *BUILT_IN_NEEDS):
        assert required.pop(name_of(need)) == need
    of_the_front_end = {"prometheus_client", "tornado", "uvloop"}
    of_commands = {"httpx2", "packaging", "prompt_toolkit", "rich", "shtab"}
    assert {name_of(line) for line in required.values()} == of_the_front_end | of_commands


def test_a_worker_imports_no_more_than_it_is_said_to_need(tmp_path: Path) -> None:
    """What djl_python itself imports, of what is installed."""
    folders = (OURS, OURS / "compat", OURS / "worker", OURS / "usercode")
    sources = [path for folder in folders for path in folder.glob("*.py")]
    words = {word for path in sources for word in re.findall(r"(?m)^(?:import|from) (\w+)", path.read_text())}
    foreign = words - sys.stdlib_module_names - {"numpy"}  # which a handler of arrays brings
    assert foreign == {name_of(need) for need in PROCESS_NEEDS}


@pytest.mark.parametrize(
    ("version", "lacks"),
    [
        *(("0.21", False), ("0.21.0", False), ("1", False), ("0.20.9", True), ("0.9", True), (None, True)),
        *(("0.21.1.post1+cpu", False), ("nonsense", True), ("2.0", True), ("1.9.9", False)),
    ],
)
def test_versions_are_compared(version: str | None, lacks: bool) -> None:
    there = Interpreter("", LEAST_PYTHON, "", "", versions={} if version is None else {"some": version})
    assert there.lacks(["some>=0.21,<2"]) == (("some>=0.21,<2",) if lacks else ())


def test_the_servers_own_has_what_workers_need(named: Named) -> None:
    interpreter = interpreter_of(named(""), os.environ, (*PROCESS_NEEDS, *BUILT_IN_NEEDS))
    assert (interpreter.executable, interpreter.version, interpreter.prefix) == (
        sys.executable,
        sys.version_info[:3],
        sys.prefix,
    )
    assert interpreter.lacks((*PROCESS_NEEDS, *BUILT_IN_NEEDS)) == ()
    assert interpreter.versions["msgspec"] == msgspec.__version__


def test_a_name_is_looked_for_on_the_path_of_the_workers(named: Named, tmp_path: Path) -> None:
    name = script(tmp_path, f'exec {sys.executable} "$@"')
    interpreter = interpreter_of(named(name), {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}, ())
    assert interpreter.executable == str(tmp_path / name)
    assert interpreter_of(named(f"./{name}"), os.environ, ()).executable == str(tmp_path / name)  # of the model


def test_an_interpreter_that_prints_at_its_start_is_taken(named: Named, tmp_path: Path) -> None:
    name = script(tmp_path, f'echo welcome\n{sys.executable} "$@"\n')
    assert interpreter_of(named(f"./{name}"), os.environ, ()).version == sys.version_info[:3]


@pytest.mark.parametrize("version", [[2, 7, 18], [3, 11, 3]])
def test_an_interpreter_too_old_is_refused_in_a_line(named: Named, tmp_path: Path, version: list[int]) -> None:
    old = json.dumps({"version": version, "build": "", "prefix": "/old"})
    name = script(tmp_path, f"echo '{old}'")
    with pytest.raises(ModelLoadError) as raised:
        interpreter_of(named(f"./{name}"), os.environ, PROCESS_NEEDS)
    is_this = ".".join(map(str, version))
    assert raised.value.message == (
        f"serving.properties:1: option.pythonExecutable=./{name}: this is Python {is_this}, "
        "and workers need 3.11.4 or newer"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file or directory"),
        ("echo broken >&2; exit 3", "is no Python interpreter that works: broken"),
        ("exit 3", "is no Python interpreter that works: status 3"),
        ("echo '[1]'", "is no Python interpreter that works: status 0"),
        ("echo '{}'", "is no Python interpreter that works: status 0"),
    ],
)
def test_a_broken_interpreter_is_refused_with_the_reason(
    named: Named, tmp_path: Path, text: str | None, problem: str
) -> None:
    name = "python" if text is None else script(tmp_path, text)
    with pytest.raises(ModelLoadError) as raised:
        interpreter_of(named(f"./{name}"), os.environ, ())
    message = raised.value.message
    assert message.startswith(f"serving.properties:1: option.pythonExecutable=./{name}: {tmp_path}/{name}")
    assert message.endswith(problem) and "\n" not in message


def test_only_built_in_handlers_need_their_packages(tmp_path: Path) -> None:
    config = ModelConfig(name="m", path=str(tmp_path))
    own = msgspec.structs.replace(config, option=Options(entry_point="some.module"))
    assert needs_of(config) == (*PROCESS_NEEDS, *BUILT_IN_NEEDS) and needs_of(own) == PROCESS_NEEDS
    (tmp_path / "model.py").touch()
    built_in = msgspec.structs.replace(config, option=Options(entry_point="djl_python.huggingface"))
    assert needs_of(config) == PROCESS_NEEDS and needs_of(built_in) == (*PROCESS_NEEDS, *BUILT_IN_NEEDS)
