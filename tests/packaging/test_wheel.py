"""The wheel, really built: what git knows of the package is in it, and nothing else."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Folder of the repository -> folder of the wheel.
MAPPED = {
    "djl_python": "djl_python",
    "handlers": "djl_python/handlers",
    "serving_templates": "djl_python/serving_templates",
}


def repository_files() -> list[str]:
    """Files that are, or with the next commit could be, in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    return sorted({name for name in listed if name and (ROOT / name).is_file()})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a copy of the repository, in which the templates have been run (hence the .pyc)."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in repository_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for folder in ("serving_templates/custom_handler", "handlers", "djl_python/server"):
        (copy / folder / "__pycache__").mkdir(parents=True)
        (copy / folder / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"stale")
    # --no-build-isolation: with the setuptools that is here, without a network.
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    command += ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(copy)]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = out.glob("djl_serving-*.whl")
    return zipfile.ZipFile(path)


def test_contents_are_what_git_knows(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"{MAPPED[folder]}/{rest}"
        for folder, _, rest in (name.partition("/") for name in repository_files())
        if folder in MAPPED
    }
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert sorted(found ^ expected) == []


def test_only_one_top_level_name(wheel: zipfile.ZipFile) -> None:
    """A top-level `handlers` would be shadowed by a user's own handlers.py."""
    assert {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == {"djl_python"}


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_entry_point(wheel: zipfile.ZipFile) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(metadata(wheel, "entry_points.txt"))
    assert dict(parser["console_scripts"]) == {"djl-serving": "djl_python.cli:main"}


def test_metadata(wheel: zipfile.ZipFile) -> None:
    text = metadata(wheel, "METADATA")
    assert "Name: djl-serving\n" in text
    assert "License-Expression: Apache-2.0\n" in text
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")
