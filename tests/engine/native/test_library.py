"""Kernels that came along are used, others are built once; whoever can't have any is told why, and works on torch."""

from __future__ import annotations

import functools
import hashlib
import inspect
import mmap
import os
import platform
import re
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from djl_python.core.errors import ModelLoadError
from djl_python.engine.native import compiling
from djl_python.engine.native import library as finding
from djl_python.engine.native.abi.places import field_offsets
from djl_python.engine.native.compiling import (
    PROCESSORS,
    TILES,
    CompilationError,
    Processor,
    compile_kernels,
    features_here,
    fingerprint,
    processors_here,
)
from djl_python.engine.native.library import KernelsUnavailableError, find_library, library, place_of
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch, run_to_end
from tests.kernels import kernels_or_skip


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    """These tests find kernels of their own."""
    kernels_or_skip(library)


@pytest.fixture(autouse=True, scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is built has the kernels' names and does nothing: the kernels themselves take a compiler half a minute."""
    folder = tmp_path_factory.mktemp("sources")
    names = ["djl_fingerprint", *sorted(set(re.findall(r"loaded\.(djl_\w+)", inspect.getsource(finding))))]
    functions = "".join(f"const char* {name}() {{ return DJL_FINGERPRINT; }}\n" for name in names)
    rows = "".join(f'{{"{name}", {offset}, {size}}}, ' for name, (offset, size) in field_offsets().items())
    table = f"const struct Place {{ const char* name; unsigned long offset, size; }} table[] = {{{rows}}};\n"
    functions += f"const Place* djl_abi(int* count) {{ *count = {len(field_offsets())}; return table; }}\n"
    (folder / "kernels.cpp").write_text(f'{table}extern "C" {{\n{functions}}}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "SOURCES", folder)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels are built, once: the only ones that there are."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> Path:
    """Where kernels could have come along, and have not."""
    monkeypatch.setattr(finding, "SOURCES", tmp_path)
    monkeypatch.setenv("HOME", str(home))
    return tmp_path


def kept(home: Path) -> list[Path]:
    return list((home / ".cache" / "djl-serving").iterdir())


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_kernels_are_built_once_and_kept(home: Path) -> None:
    find_library()
    (path,) = kept(home)
    built_at = path.stat().st_mtime_ns
    find_library()
    assert kept(home) == [path]
    assert path.stat().st_mtime_ns == built_at


def test_kernels_that_came_along_need_no_compiler(
    home: Path, package: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_library()
    shutil.copy(kept(home)[0], package / processors_here()[0].library)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("another")))
    no_compiler(monkeypatch)
    assert find_library()._name == str(package / processors_here()[0].library)


def test_kernels_of_other_sources_are_left_alone(home: Path, package: Path) -> None:
    (package / processors_here()[0].library).write_bytes(b"\x7fELF of another release")
    assert Path(find_library()._name).is_relative_to(home)


def test_kernels_that_cannot_be_loaded_are_built_instead(
    home: Path, package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    processor = processors_here()[0]
    (package / processor.library).write_bytes(b"\x7fELF for another libc, " + fingerprint(processor).encode())
    assert Path(find_library()._name).is_relative_to(home)
    assert "the CPU kernels that came with the package can't be loaded" in caplog.text


@pytest.fixture
def another_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One where nothing has been built yet; building is a copy."""
    find_library()
    (path,) = kept(home)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(finding, "compile_kernels", lambda processor, to: shutil.copy(path, to))
    return tmp_path / "home"


def built_elsewhere(home: Path) -> bool:
    built = Path(find_library()._name)
    return built.exists() and not built.is_relative_to(home)


@pytest.mark.parametrize("damage", ["half", "bit", "empty", "another libc"])
def test_kernels_that_were_built_before_and_are_damaged_are_built_again(
    home: Path, another_home: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = kept(home)[0].read_bytes()
    (another_home / ".cache" / "djl-serving").mkdir(parents=True)
    bad = another_home / ".cache" / "djl-serving" / kept(home)[0].name
    middle = len(whole) // 2
    content, told = {
        "half": (whole[:middle], "are damaged: they are built again"),
        "bit": (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], "are damaged: they are built again"),
        "empty": (b"", "are damaged: they are built again"),
        "another libc": (b"\x7fELF" + hashlib.sha256(b"\x7fELF").digest(), "that were built before can't be loaded"),
    }[damage]
    bad.write_bytes(content)
    assert (place_of(processors_here()[0]) == "") == (damage != "another libc")
    assert find_library()._name == str(bad)
    assert [told in message for message in caplog.messages if "damaged" in message or "loaded" in message] == [True]
    assert bad.read_bytes() == whole
    caplog.clear()
    assert find_library()._name == str(bad)
    assert not caplog.text, "it is as good as new"


def test_kernels_get_their_name_when_all_of_them_is_on_disk(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may load them at once, and power may fail."""
    path, done = tmp_path / "kernels.so", []
    sync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def renamed(old: Path, new: Path) -> Path:
        assert compiling.is_whole(old)
        done.append("name")
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    compile_kernels(processors_here()[0], path)
    assert done == ["file", "name", "folder"]


def test_where_kernels_cannot_be_kept_they_are_built_for_this_start(
    another_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(dir: Path) -> None:
        raise PermissionError(f"read-only file system: {dir}")

    monkeypatch.setattr("tempfile.TemporaryFile", cannot)
    assert built_elsewhere(another_home)


def test_where_files_may_hold_no_code_kernels_are_built_elsewhere(
    another_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(file: int, size: int, *, prot: int) -> None:
        assert prot & mmap.PROT_EXEC
        raise PermissionError("mounted with noexec")

    monkeypatch.setattr(mmap, "mmap", cannot)
    assert built_elsewhere(another_home)


def test_a_user_without_a_home_has_kernels(another_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert built_elsewhere(another_home)


def test_where_nothing_that_is_built_can_be_loaded_there_are_no_kernels(
    another_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def build(processor: Processor, path: Path) -> None:
        built.append(processor)
        path.write_bytes(b"\x7fELF for another libc")

    monkeypatch.setattr(finding, "compile_kernels", build)
    with pytest.raises(
        KernelsUnavailableError, match=r"kernels that are built here can't be kept or loaded: .*file too short"
    ):
        find_library()
    assert built == processors_here()[:1], "others would fare no better"


def test_kernels_are_looked_for_once_also_in_vain(another_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(processor: Processor, path: Path) -> None:
        tried.append(processor)
        raise CompilationError("c++ failed: []")

    monkeypatch.setattr(finding, "compile_kernels", fail)
    monkeypatch.setattr(finding, "kernels_or_reason", functools.cache(finding.kernels_or_reason.__wrapped__))

    def ask(_: int) -> None:
        with pytest.raises(KernelsUnavailableError, match="failed"):
            library()

    with ThreadPoolExecutor() as side_by_side:
        list(side_by_side.map(ask, range(4)))
    assert tried == processors_here()


def test_a_compiler_that_hangs_or_has_no_place_to_write_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processor = processors_here()[0]
    with pytest.raises(CompilationError, match="there is no place for the kernels"):
        compile_kernels(processor, tmp_path / "nowhere" / processor.library)
    hanging = tmp_path / "c++"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(hanging))
    monkeypatch.setattr("djl_python.engine.native.compiling.TIMEOUT_S", 0.1)
    with pytest.raises(CompilationError, match="timed out after"):
        compile_kernels(processor, tmp_path / processor.library)
    assert not (tmp_path / processor.library).exists()


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    no_compiler(monkeypatch)
    with pytest.raises(KernelsUnavailableError, match=r"no C\+\+ compiler \(c\+\+, g\+\+ or clang\+\+\)"):
        find_library()


def test_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compiling, finding):
        monkeypatch.setattr(module, "features_here", lambda: {"f16c", "sse4_2"})
    lacks = ", ".join(sorted(PROCESSORS[-1].features - {"f16c"}))
    with pytest.raises(KernelsUnavailableError, match=f"the processor lacks {lacks}"):
        find_library()


def test_a_machine_of_another_family(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (compiling, finding):
        monkeypatch.setattr(module, "PROCESSORS", ())
    with pytest.raises(KernelsUnavailableError, match=f"there are none for linux on {platform.machine()}"):
        find_library()


has_tiles = pytest.mark.skipif(platform.machine() != "x86_64", reason="no such processors have tiles")


@has_tiles
@pytest.mark.parametrize("allowed", [True, False])
def test_tiles_are_asked_for(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    monkeypatch.setattr(compiling, "features_here", lambda: set().union(*(one.features for one in PROCESSORS)))
    monkeypatch.setattr(compiling, "may_use_tiles", lambda: allowed)
    assert processors_here() == list(PROCESSORS if allowed else PROCESSORS[1:])


@has_tiles
def test_a_system_without_tiles_does_not_give_them(monkeypatch: pytest.MonkeyPatch) -> None:
    if features_here() >= TILES:
        pytest.skip("this processor has them")
    monkeypatch.setattr(compiling, "features_here", lambda: set(PROCESSORS[0].features))
    assert processors_here()[0] == PROCESSORS[1]


def test_a_compiler_that_does_not_know_this_processor_makes_kernels_for_an_older_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_library()
    (path,) = kept(home)
    newest = Processor("newest", platform.machine(), frozenset(), ("-mavx4096",))
    monkeypatch.setattr(finding, "processors_here", lambda: [newest, *processors_here()])
    assert find_library()._name == str(path)
    assert kept(home) == [path]  # what failed has left nothing behind
    monkeypatch.setattr(finding, "processors_here", lambda: [newest])
    with pytest.raises(KernelsUnavailableError, match=r"failed: .*avx4096"):
        find_library()


def test_without_kernels_the_model_runs_on_torch_and_native_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise KernelsUnavailableError("there is no C++ compiler")

    monkeypatch.setattr("djl_python.engine.native.thread_pool.library", missing)
    path = build_checkpoint(tmp_path, "llama")
    with caplog.at_level("INFO"):
        batch = open_batch(path)
    assert "native" not in batch.description
    assert "no native kernels: there is no C++ compiler; the model runs on torch" in caplog.text
    assert run_to_end(batch) == {}
    with pytest.raises(ModelLoadError, match=r"option.kernels=native: there is no C\+\+ compiler"):
        open_batch(path, kernels="native")
