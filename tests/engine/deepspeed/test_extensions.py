from __future__ import annotations

import importlib
import logging
from pathlib import Path
from types import ModuleType

import pytest

from djl_python.core.errors import ModelLoadError
from tests.engine.deepspeed.conftest import FakeBuilder, FakeDeepSpeed


@pytest.fixture
def extensions(fake: FakeDeepSpeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return importlib.import_module("djl_python.engine.deepspeed.extensions")


def test_the_lock_of_a_killed_build_is_removed(extensions: ModuleType, tmp_path: Path) -> None:
    mark = tmp_path / "async_io" / "lock"
    mark.parent.mkdir()
    mark.write_text("")
    extensions.load_async_io()
    assert not mark.exists()


def test_missing_headers_are_named_with_the_command_to_install_them(
    extensions: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeBuilder, "compatible", False)
    with pytest.raises(ModelLoadError, match="libaio's headers are missing: apt-get install libaio-dev"):
        extensions.load_async_io()
    with pytest.raises(ModelLoadError, match="DeepSpeed's kernels can't be compiled here"):
        extensions.load_kernels()


def test_a_build_that_fails_is_an_error_of_the_model(extensions: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: FakeBuilder, verbose: bool) -> None:
        raise RuntimeError("Error building extension 'fake'")

    monkeypatch.setattr(FakeBuilder, "load", fail)
    with pytest.raises(ModelLoadError, match="fake can't be compiled here: Error building ext"):
        extensions.load_kernels()


def test_deepspeeds_output_goes_to_our_log(
    extensions: ModuleType,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])  # whatever other tests have left there
    logger = logging.getLogger("FakeDeepSpeed")
    logger.addHandler(logging.StreamHandler())
    extensions.prepare_process()
    with caplog.at_level("DEBUG"), extensions.logging_prints():
        logger.warning("as we do")
        print("AutoTP: ", "layers")
    assert caplog.messages == ["as we do", "AutoTP:  layers"]
    assert capsys.readouterr() == ("", "")
