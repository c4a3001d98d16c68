"""The kernels' sources compile without warnings, and do nothing that sanitizers forbid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from djl_python.engine.native.compiling import (
    PROCESSORS,
    Processor,
    compile_kernels,
    compiler,
    fingerprint,
    processors_here,
)

ROOT: Final = Path(__file__).resolve().parents[3]
#: Errors for us alone: compilers that we don't have may warn of anything. GCC 12 warns of its own AVX-512 intrinsics,
#: which begin with uninitialized vectors.
WARNINGS: Final = ("-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-maybe-uninitialized")
SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1")
#: Architectures that have all kinds of layers between them.
ARCHITECTURES: Final = ("llama", "gemma2", "qwen3_moe", "deepseek_v3", "qwen3_next", "mamba", "mamba2", "bloom")
#: Tests of each kind of operation, which take a minute or two.
REPRESENTATIVE: Final = (
    "test_packing.py",
    "program/test_rescoring.py::test_with_a_bias_and_a_scale",
    "program/test_rescoring.py::test_choices_of_a_mixture_are_those_from_all_logits",
    "program/test_rescoring.py::test_rescoring_picks_no_token_where_scores_are_no_numbers",
    *(
        f"program/test_program.py::test_every_position_of_two_sequences_in_pieces[best-{name}]"
        for name in ARCHITECTURES
    ),
    "program/test_program.py::test_rounded_activations_do_not_depend_on_threads[best-int4]",
    "modules/test_causal_conv.py",
)
#: Has pytest find the kernels in the user's cache, not the package's.
PROGRAM: Final = """
import sys
from pathlib import Path
import pytest
from djl_python.engine.native import library

library.SOURCES = Path("/nonexistent")
sys.exit(pytest.main(sys.argv[1:]))
"""

pytestmark = pytest.mark.skipif(compiler() is None or not PROCESSORS, reason="no compiler, or no kernels here")


@pytest.fixture(autouse=True, scope="package", params=["own"])
def _kernels() -> Iterator[None]:
    """These tests compile kernels of their own."""
    yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "processor", [PROCESSORS[0], PROCESSORS[-1]] if PROCESSORS else [], ids=lambda processor: processor.name
)
def test_kernels_compile_without_warnings(processor: Processor, tmp_path: Path) -> None:
    compile_kernels(processor, tmp_path / processor.library, WARNINGS)


@pytest.mark.slow
def test_kernels_do_nothing_that_sanitizers_forbid(tmp_path: Path) -> None:
    processor = processors_here()[0]
    home = tmp_path / ".cache" / "djl-serving"
    home.mkdir(parents=True)
    compile_kernels(processor, home / f"kernels-{processor.name}-{fingerprint(processor)}.so", SANITIZERS)
    environment = os.environ | {
        "HOME": str(tmp_path),
        "LD_PRELOAD": " ".join(_runtime(name) for name in ("libasan.so", "libubsan.so")),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    tests = [f"tests/engine/native/{name}" for name in REPRESENTATIVE]
    command = [sys.executable, "-c", PROGRAM, "-q", "-x", "-p", "no:cacheprovider", "-k", "best", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def _runtime(name: str) -> str:
    """Path of one of the compiler's libraries."""
    command = [str(compiler()), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
