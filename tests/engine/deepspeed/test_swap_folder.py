from __future__ import annotations

import os
from pathlib import Path

import pytest

from djl_python.core.errors import ModelLoadError
from djl_python.engine.deepspeed.swap_folder import SwapFolder


class Owner:
    """Something that goes."""


def test_a_folder_goes_with_its_owner_and_no_other_one(tmp_path: Path) -> None:
    directory = tmp_path / "nvme"
    first, second = SwapFolder(directory), SwapFolder(directory)
    assert first.path != second.path
    owner = Owner()
    first.removed_with(owner)
    (first.path / "weights").write_bytes(b"x")
    del owner
    assert list(directory.iterdir()) == [second.path]


def test_what_a_killed_process_has_left_goes(tmp_path: Path) -> None:
    left = SwapFolder(tmp_path)
    os.close(left._lock)  # which the operating system does when a process ends
    assert list(tmp_path.iterdir()) == [left.path]
    assert list(tmp_path.iterdir()) == [SwapFolder(tmp_path).path] or not left.path.exists()


def test_a_directory_that_can_not_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadError, match=f"{tmp_path}/file: (File exists|Not a directory)"):
        SwapFolder(tmp_path / "file")
