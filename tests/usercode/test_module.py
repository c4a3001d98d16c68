"""The user's own file: found where it is, imported once, in nobody's way."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.usercode.module import load_user_module, user_file


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_does_not_displace_a_module_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "types.py").write_text("mine = True", encoding="utf-8")
    module = load_user_module(tmp_path, "types.py")
    assert (module.__name__, module.mine) == ("user_types", True)
    assert sys.modules["types"] is types
    assert load_user_module(tmp_path, "types.py") is module


def test_a_users_module_is_imported_once(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = object()", encoding="utf-8")
    assert load_user_module(tmp_path) is load_user_module(tmp_path) is sys.modules["model"]
    assert sys.path[0] == str(tmp_path.resolve())


def test_a_file_that_fails_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import not_there", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError):
        load_user_module(tmp_path, "broken.py")
    assert "broken" not in sys.modules
    with pytest.raises(ModelLoadError, match=r"gone\.py does not exist"):
        load_user_module(tmp_path, "gone.py")


@pytest.mark.parametrize(
    ("files", "entry_point", "expected"),
    [
        (["model.py"], "", "model.py"),
        (["model.py", "demo.py"], "", "demo.py"),
        (["model.py", "serve.py"], "serve.py", "serve.py"),
        (["model.py", "serve.py"], "serve.py:handle", "serve.py"),
        (["model.py", "serve.py"], "serve", "serve.py"),
        (["model.py"], "djl_python.huggingface", "model.py"),
        ([], "", None),
    ],
)
def test_the_users_file_is_found_by_entry_point_or_name(
    tmp_path: Path, files: list[str], entry_point: str, expected: str | None
) -> None:
    for name in files:
        (tmp_path / name).touch()
    config = ModelConfig(name="demo", path=str(tmp_path), option=Options(entry_point=entry_point))
    assert user_file(config) == expected


def test_a_model_without_a_directory_has_none() -> None:
    assert user_file(ModelConfig(name="demo")) is None


def test_a_failed_import_of_ours_is_said_with_its_place_and_other_errors_pass_unchanged(tmp_path: Path) -> None:
    guarded = "try:\n    from djl_python import Gone\nexcept ImportError:\n    pass\n"
    for source, fault in (
        ("from djl_python import Inputs", r"model.py:1: djl_python has no 'Inputs'; did you mean Input\?$"),
        (
            f"{guarded}from djl_python import output_formatter as o\n@o\ndef write(response): ...",
            r"model.py:6: o is a module, not a function; use: from djl_python.output_formatter import ",
        ),
    ):
        (tmp_path / "model.py").write_text(source, encoding="utf-8")
        with pytest.raises(ModelLoadError, match=fault):
            load_user_module(tmp_path)
    (tmp_path / "model.py").write_text(f"{guarded}len(3)", encoding="utf-8")
    with pytest.raises(TypeError, match="has no len"):
        load_user_module(tmp_path)


def test_a_package_of_an_engine_that_is_missing_is_said_with_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import deepspeed", encoding="utf-8")
    with pytest.raises(ModelLoadError, match="'deepspeed'; install it with: djl-serving engines install deepspeed"):
        load_user_module(tmp_path)
