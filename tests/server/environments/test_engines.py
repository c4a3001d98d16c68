"""Engines in environments of their own, made by real pips of packages that are made here."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from djl_python.config import ENVIRONMENT_STAMP
from djl_python.config.engines import ENGINES, Distribution
from djl_python.core.errors import ConfigError, ModelLoadError
from djl_python.engine.vllm.row import ENGINE
from djl_python.ipc.protocol import Status
from djl_python.server.environments import engines
from djl_python.server.environments.command import main
from djl_python.server.environments.engines import engines_listed, install_commands, install_engine, installable
from tests.server.environments.packages import write_wheel


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip finds what an engine needs, and asks nobody else."""
    folder = tmp_path / "links"
    for name, version in (("jsonlines", "4.0"), ("msgspec", "0.21"), ("deep", "1"), ("ballast", "1"), ("deeper", "1")):
        write_wheel(folder, name, version, *(["ballast"] if name == "deep" else []))
    for name, value in (("CONFIG_FILE", os.devnull), ("NO_INDEX", "1"), ("FIND_LINKS", str(folder))):
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """What is installed in vLLM's place."""
    made = Distribution(
        cpu=("deep==1",),
        cuda=("deep==2",),
        unwanted_on_cpu=("ballast",),
        from_source=("deeper==1",),
        compiles="import deep, deeper, os; os.mkdir(os.environ['TORCH_EXTENSIONS_DIR']); "
        "assert os.environ['PATH'].startswith(os.environ['VIRTUAL_ENV'])",
        extensions="extensions",
    )
    row = dataclasses.replace(ENGINE, requires=("deep_thoughts",), distribution=made)
    monkeypatch.setattr(engines, "row_of", lambda name: row if name == "vllm" else None)
    return made


async def test_an_engine_is_installed_once_and_found(tmp_path: Path, links: Path, deep: Distribution) -> None:
    told: list[Status] = []
    venv = await install_engine("vllm", "cpu", str(tmp_path / "cache"), told.append)
    assert venv == deep.directory("vllm", "cpu", str(tmp_path / "cache"))
    assert (venv / ENVIRONMENT_STAMP).is_file()
    (site,) = venv.glob("lib/*/site-packages")
    assert (site / "deep.py").is_file() and (site / "msgspec.py").is_file()
    assert not (site / "ballast.py").exists()  # brought along, and of no use on CPUs
    assert (venv / "extensions").is_dir()
    assert list(dict.fromkeys(status.detail for status in told)) == [
        "making an environment",
        "installing vllm",
        "building vllm",
        "removing what CPUs have no use for",
        "compiling for vllm",
    ]
    row, _ = installable("vllm")
    runtime = row.runtime(str(tmp_path / "cache"))
    assert runtime is not None
    assert (runtime.executable, runtime.venv) == (str(venv / "bin" / "python"), str(venv))
    assert f"in {venv}: deeper==1, deep==1, jsonlines" in engines_listed(str(tmp_path / "cache"))
    before = (venv / ENVIRONMENT_STAMP).stat().st_mtime_ns
    told.clear()
    assert await install_engine("vllm", "cpu", str(tmp_path / "cache"), told.append) == venv
    assert (told, (venv / ENVIRONMENT_STAMP).stat().st_mtime_ns) == ([], before)


@pytest.mark.slow
async def test_a_failed_installation_reports_pips_last_lines_and_leaves_nothing(
    tmp_path: Path, links: Path, deep: Distribution
) -> None:
    with pytest.raises(ModelLoadError) as caught:
        await install_engine("vllm", "cuda", str(tmp_path / "cache"), lambda status: None)
    assert "ended with status 1:" in caught.value.message
    assert "No matching distribution found for deep==2" in caught.value.message
    venv = deep.directory("vllm", "cuda", str(tmp_path / "cache"))
    assert not venv.exists()


def test_every_engine_is_listed_with_what_brings_it(tmp_path: Path) -> None:
    listed = engines_listed(str(tmp_path))
    assert [line for line in listed.splitlines() if not line.startswith(" ") and line] == [
        f"option.rolling_batch={name}" for name in ENGINES
    ]
    assert "  not here: install it with: djl-serving engines install vllm\n  without typical_p\n" in listed
    assert (
        "  not here: on a machine with a GPU, install it with: djl-serving engines install trtllm\n  without bad"
        in listed
    )


@pytest.mark.parametrize("name", ["auto", "nonsense", "mine:Engine"])
def test_an_engine_that_can_not_be_installed_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path))
    with pytest.raises(
        ConfigError, match=f"engine '{name}' can't be installed; expected one of vllm, deepspeed, trtllm"
    ):
        main(["install", name])


def test_the_command_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path))
    assert main([]) == 0
    assert capsys.readouterr().out == engines_listed(str(tmp_path))


def test_an_engine_without_packages_for_the_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="'trtllm' has no packages for cpu; --device cuda installs it for that"):
        main(["install", "trtllm", "--device", "cpu"])
    monkeypatch.setattr("sys.version_info", (3, 11, 7))
    with pytest.raises(ConfigError, match=r"'trtllm' has packages for Python 3\.12, and this is 3\.11"):
        main(["install", "trtllm", "--device", "cuda"])


def test_an_engines_own_indexes_are_asked_too() -> None:
    made = Distribution(cuda=("deep==2",), indexes=("https://deep.example",))
    (_, _), (what, command) = install_commands("deep", made, "cuda", Path("/venv"))
    assert what == "installing deep"
    assert command[command.index("--extra-index-url") :][:3] == ["--extra-index-url", "https://deep.example", "deep==2"]
