from pathlib import Path

import pytest

from djl_python.config import ModelConfig
from djl_python.core.errors import ModelLoadError
from djl_python.server.environments import Requirements, requirements_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    (directory / "requirements").mkdir(parents=True)
    (directory / "requirements.txt").write_text(
        "cowsay\n-r more.txt  # and more\n--constraint=limits.txt\n./one-1-py3-none-any.whl[extra]\n"
        "two @ file:///nowhere/two.zip ; python_version < '3'\nthree; it's wrong\n./source\n"
        "-f wheels\n-e editable\n"
    )
    (directory / "more.txt").write_text("-r requirements.txt\n-cdeep/limits.txt\n")
    (directory / "limits.txt").write_text("cowsay<9\n")
    (directory / "deep").mkdir()
    (directory / "deep" / "limits.txt").write_text("cowsay<8\n")
    (directory / "one-1-py3-none-any.whl").write_bytes(b"1")
    for folder in ("source", "wheels", "editable"):
        (directory / folder).mkdir()
        (directory / folder / "setup.py").write_text("")
    (directory / "requirements" / "cowsay-1-py3-none-any.whl").write_bytes(b"1")
    (directory / "model.py").write_text("")
    return directory


def read_requirements(directory: Path) -> Requirements:
    requirements = requirements_of(ModelConfig(name="m", path=str(directory)))
    assert requirements is not None
    return requirements


def test_nothing_is_asked_for(model: Path) -> None:
    (model / "requirements.txt").unlink()
    assert requirements_of(ModelConfig(name="m", path=str(model))) is None  # as in DJL: the folder is only looked into
    assert requirements_of(ModelConfig(name="m")) is None
    (model / "requirements.txt").write_text("# none yet\n\n  # at all")
    assert requirements_of(ModelConfig(name="m", path=str(model))) is None


@pytest.mark.parametrize(
    "file",
    [
        *("requirements.txt", "more.txt", "limits.txt", "deep/limits.txt", "one-1-py3-none-any.whl", "source/setup.py"),
        *("requirements/cowsay-1-py3-none-any.whl", "requirements/new.whl", "source/new.py"),
        *("wheels/new.whl", "editable/setup.py"),
    ],
)
def test_a_changed_requirement_makes_another_environment(model: Path, file: str) -> None:
    before = read_requirements(model).digest()
    assert read_requirements(model).digest() == before
    with (model / file).open("a") as opened:
        opened.write("# changed")
    assert read_requirements(model).digest() != before


def test_other_files_do_not(model: Path) -> None:
    before = read_requirements(model).digest()
    (model / "model.py").write_text("changed")
    assert read_requirements(model).digest() == before


def test_a_directory_that_is_elsewhere_has_the_same_requirements(model: Path, tmp_path: Path) -> None:
    (model / "requirements.txt").write_text("cowsay\n-r more.txt\n")
    before = read_requirements(model).digest()
    assert read_requirements(model.rename(tmp_path / "elsewhere")).digest() == before


def test_an_unreadable_requirements_file_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    requirements = read_requirements(model)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ModelLoadError, match=r"^/.*/requirements\.txt: Permission denied$"):
        read_requirements(model)
    with pytest.raises(ModelLoadError, match=r"^/.*/requirements\.txt: Permission denied$"):
        requirements.digest()
