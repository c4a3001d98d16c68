from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from djl_python.ipc.package_path import package_path
from tests.server.environments.packages import OURS


def test_a_folder_with_our_package_and_nothing_else(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        (path,) = set(threads.map(package_path, [tmp_path] * 4))
    assert [one.name for one in path.iterdir()] == ["djl_python"]
    assert [one.name for one in path.parent.iterdir()] == [path.name]  # nothing that was begun is left
    names = {one.name for one in (path / "djl_python").iterdir()}
    assert names == {one.name for one in OURS.iterdir()} - {"__pycache__"} | {"handlers", "serving_templates"}
    assert (path / "djl_python" / "handlers" / "text_generation.py").is_file()
    assert path.stat().st_mode & 0o777 == 0o755  # another user's workers may read it


def test_another_package_has_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = package_path(tmp_path)
    monkeypatch.setattr("djl_python.ipc.package_path.ELSEWHERE", ("handlers",))
    assert package_path(tmp_path) != before
