from __future__ import annotations

import subprocess
import sys
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


def test_the_folder_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from djl_python.engine.deepspeed.swap_folder import SwapFolder\n"
        "folder = SwapFolder(Path(sys.argv[1])); print(folder.path, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        living = SwapFolder(tmp_path)
        assert left.exists()
        process.kill()
    assert left.exists()
    newest = SwapFolder(tmp_path)
    assert {*tmp_path.iterdir()} == {living.path, newest.path}


def test_a_directory_that_can_not_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadError, match=f"{tmp_path}/file: (File exists|Not a directory)"):
        SwapFolder(tmp_path / "file")
