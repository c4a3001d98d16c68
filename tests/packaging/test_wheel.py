"""The wheel, really built: what git knows of the package is in it, its kernels, and nothing else.

`make test` builds the one without kernels, as where there is no compiler, and those that a compiler of the test's own
makes; `make test-all` also that with all of them.
"""

from __future__ import annotations

import configparser
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from djl_python.engine.checkpoints.linears import Linear
from djl_python.engine.native import library as finding
from djl_python.engine.native.compiling import PROCESSORS, Processor, compiler, features_here, processors_here
from djl_python.engine.native.library import find_library
from djl_python.engine.native.modules.linears import NativeLinears
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch

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


WITHOUT_KERNELS, WITH_KERNELS = "without kernels", "with kernels"
#: For tests of the latter, which takes minutes.
with_kernels = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None or not PROCESSORS, reason="there is no compiler, or there are no kernels"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, in which the templates have been run (hence the .pyc)."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    copy = tmp_path_factory.mktemp("copy")
    for name in repository_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for folder in ("serving_templates/custom_handler", "handlers", "djl_python/server"):
        (copy / folder / "__pycache__").mkdir(parents=True)
        (copy / folder / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"stale")
    return copy


@pytest.fixture(scope="module", params=[WITHOUT_KERNELS, pytest.param(WITH_KERNELS, marks=with_kernels)])
def wheel(request: pytest.FixtureRequest, copy: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Kernels for every processor are in it where there is a compiler for them."""
    out = tmp_path_factory.mktemp("wheel")
    environment = {"PATH": ""} if request.param == WITHOUT_KERNELS else {"DJL_SERVING_KERNELS": "all"}
    result = build(copy, out, environment)
    assert result.returncode == 0, result.stdout + result.stderr
    system = "any" if request.param == WITHOUT_KERNELS else f"linux_{platform.machine()}"
    (path,) = out.glob(f"djl_serving-*-py3-none-{system}.whl")
    return zipfile.ZipFile(path)


def build(copy: Path, out: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Have pip build the wheel into `out`, and show what it compiles."""
    shutil.rmtree(copy / "build", ignore_errors=True)  # setuptools takes what an earlier build has left there
    # --no-build-isolation: with the setuptools that is here, without a network.
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-v"]
    command += ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(copy)]
    return subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


#: A compiler that makes a file of its arguments at once, unless one of them is FLAG.
COMPILER = """#!/bin/sh
case " $* " in *" FLAG "*) echo "error: no such flag" >&2; exit 1;; esac
for last; do :; done
echo "$*" >"$last"
"""


@pytest.mark.skipif(not processors_here(), reason="no kernels for this processor")
@pytest.mark.parametrize("which", ["here", "here, with an old compiler", "all"])
def test_a_wheel_has_the_kernels_of_the_processors_asked_for(copy: Path, tmp_path: Path, which: str) -> None:
    best, *older = processors_here()
    refused = next(flag for flag in best.flags if not older or flag not in older[0].flags)
    tool = tmp_path / "c++"
    tool.write_text(COMPILER.replace("FLAG", refused if "old" in which else "-none"))
    tool.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DJL_SERVING_KERNELS": "all" if which == "all" else ""}
    result = build(copy, tmp_path, environment)
    assert result.returncode == 0, result.stdout + result.stderr
    expected = PROCESSORS if which == "all" else older[:1] if "old" in which else [best]
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        assert {Path(name).name for name in wheel.namelist() if name.endswith(".so")} == {
            processor.library for processor in expected
        }
    for processor in expected:
        assert f"compiling the CPU kernels for {processor.name}: half a minute" in result.stdout + result.stderr


def test_a_word_that_setup_does_not_know(copy: Path, tmp_path: Path) -> None:
    result = build(copy, tmp_path, {"DJL_SERVING_KERNELS": "most"})
    assert result.returncode != 0
    assert "DJL_SERVING_KERNELS=most: expected all, or nothing" in result.stdout + result.stderr


def test_contents_are_what_git_knows(wheel: zipfile.ZipFile) -> None:
    kernels = () if str(wheel.filename).endswith("-any.whl") else PROCESSORS
    expected = {
        f"{MAPPED[folder]}/{rest}"
        for folder, _, rest in (name.partition("/") for name in repository_files())
        if folder in MAPPED
    } | {f"djl_python/engine/native/kernels/{processor.library}" for processor in kernels}
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert sorted(names ^ expected) == []


def test_only_one_top_level_name(wheel: zipfile.ZipFile) -> None:
    """A top-level `handlers` would be shadowed by a user's own handlers.py."""
    assert {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == {"djl_python"}


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (entry for entry in wheel.namelist() if entry.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_entry_point(wheel: zipfile.ZipFile) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(metadata(wheel, "entry_points.txt"))
    scripts = {"djl-serving": "djl_python.cli:main", "djl-test-model": "djl_python.test_model:run"}
    assert dict(parser["console_scripts"]) == scripts


def test_metadata(wheel: zipfile.ZipFile) -> None:
    text = metadata(wheel, "METADATA")
    assert "Name: djl-serving\n" in text
    assert "License-Expression: Apache-2.0\n" in text
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files where Python finds them."""
    folder = tmp_path_factory.mktemp("installed")
    wheel.extractall(folder)
    return folder


of_kernels = pytest.mark.parametrize("wheel", [pytest.param(WITH_KERNELS, marks=with_kernels)], indirect=True)


@of_kernels
def test_many_systems_have_all_that_the_kernels_need(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """`make wheel` names them: as it is the wheel is for systems like this one alone, and no index takes it."""
    tools = Path(sys.executable).parent
    command = [str(tools / "auditwheel"), "repair", "--wheel-dir", str(tmp_path), str(wheel.filename)]
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(
        rf"djl_serving-.+-py3-none-(many|musl)linux_\d+_\d+_{platform.machine()}(\..+)?\.whl", path.name
    )
    with zipfile.ZipFile(path) as named:
        assert {name for name in named.namelist() if not name.endswith("/")} == set(wheel.namelist())


@of_kernels
@pytest.mark.skipif(not processors_here(), reason="no kernels for this processor")
def test_kernels_need_neither_compiler_nor_home(installed: Path) -> None:
    program = "from djl_python.engine.native.library import library; print(library()._name)"
    environment = {"PYTHONPATH": str(installed), "PATH": "", "HOME": "/nonexistent"}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True)
    library = installed / "djl_python" / "engine" / "native" / "kernels" / processors_here()[0].library
    assert (result.stdout, result.stderr) == (f"{library}\n", "")


@of_kernels
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda processor: processor.name)
def test_kernels_for_each_processor_compute_the_same(
    processor: Processor, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do without what a processor lacks: products are exact, a model's logits its own (the engine looks)."""
    if processor not in processors_here():
        pytest.skip(f"this processor lacks {', '.join(sorted(processor.features - features_here()))}")
    monkeypatch.setattr(finding, "SOURCES", installed / "djl_python" / "engine" / "native" / "kernels")
    monkeypatch.setattr(finding, "processors_here", lambda: [processor])
    kernels = find_library()
    assert Path(kernels._name).is_relative_to(installed)
    monkeypatch.setattr("djl_python.engine.native.thread_pool.library", lambda: kernels)
    linears = NativeLinears(torch.bfloat16, 1)
    generator = torch.Generator().manual_seed(3)
    weight, x = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((70, 192), (9, 192)))
    expected = x.float() @ weight.float().T
    made, rounded = linears.make(Linear(weight, None), None), linears.make(Linear(weight, None), "int8")
    assert made is not None
    assert rounded is not None
    assert torch.allclose(made(x).float(), expected, rtol=2**-8, atol=1e-3)
    assert torch.allclose(rounded(x).float(), expected, rtol=0.02, atol=0.6)
    x[0, 0] = float("nan")
    assert made(x)[0].isnan().all()
    linears.pool.close()
    path = build_checkpoint(tmp_path, "llama", torch.bfloat16)
    assert "native kernels" in open_batch(path, kernels="native").description
