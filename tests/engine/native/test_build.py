"""A machine without a compiler, or with another processor, is told what is missing, and works on torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from djl_python.engine.native import build
from djl_python.engine.native.build import UnavailableError, library
from djl_python.engine.native.linears import NativeLinears
from djl_python.engine.native.recipe import Linear
from djl_python.errors import ModelLoadError
from tests.checkpoints import build_checkpoint
from tests.engine.test_paged_batch import open_batch, run_to_end


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    """These tests build kernels of their own."""
    try:
        library()
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty home, and nothing remembered."""
    monkeypatch.setattr(build, "library", build.library.__wrapped__)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_library_is_built_once_and_kept(unbuilt: Path) -> None:
    library.__wrapped__()
    (kept,) = (unbuilt / ".cache" / "djl-serving").glob("*.so")
    built_at = kept.stat().st_mtime_ns
    library.__wrapped__()
    assert [path for path in kept.parent.iterdir()] == [kept]
    assert kept.stat().st_mtime_ns == built_at


def test_no_compiler(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnavailableError, match=r"no C\+\+ compiler \(c\+\+, g\+\+ or clang\+\+\)"):
        library.__wrapped__()


def test_another_processor(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_processor_flags", lambda: {"avx", "f16c", "sse4_2"})
    with pytest.raises(UnavailableError, match="the processor lacks avx2, fma"):
        library.__wrapped__()


def test_a_failing_compiler_leaves_nothing_behind(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_FLAGS", ("--no-such-flag",))
    with pytest.raises(UnavailableError, match="failed"):
        library.__wrapped__()
    assert list((unbuilt / ".cache" / "djl-serving").iterdir()) == []


@pytest.mark.slow
def test_a_processor_whose_avx512_lacks_what_it_can_do_without(
    unbuilt: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels do without: products are as exact, and the model's logits are its own (`open_runner` looks)."""
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-mno-avx512bf16", "-mno-avx512vnni"))
    emulating = library.__wrapped__()
    monkeypatch.setattr("djl_python.engine.native.pool.library", lambda: emulating)
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
    path = build_checkpoint(tmp_path_factory.mktemp("model"), "llama", torch.bfloat16)
    assert "native kernels" in open_batch(path, kernels="native").description


def test_without_kernels_the_model_runs_on_torch_and_native_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise UnavailableError("there is no C++ compiler")

    monkeypatch.setattr("djl_python.engine.native.pool.library", missing)
    path = build_checkpoint(tmp_path, "llama")
    with caplog.at_level("INFO"):
        batch = open_batch(path)
    assert "native" not in batch.description
    assert "no native kernels: there is no C++ compiler; the model runs on torch" in caplog.text
    assert run_to_end(batch) == {}
    with pytest.raises(ModelLoadError, match=r"option.kernels=native: there is no C\+\+ compiler"):
        open_batch(path, kernels="native")
