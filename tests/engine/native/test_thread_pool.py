"""Threads that are late, or have no processor, change nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from djl_python.engine.checkpoints.linears import Linear
from djl_python.engine.native.library import library
from djl_python.engine.native.modules.linears import NativeLinear, NativeLinears
from tests.kernels import kernels_or_skip


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    """Threads are the same in all kernels."""
    kernels_or_skip(library)


def a_product(linears: NativeLinears, columns: int, width: int) -> NativeLinear:
    made = linears.make(Linear(torch.randn(columns, width), None), None)
    assert made is not None
    return made


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other processes that want the processors all the time."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


@pytest.mark.parametrize("threads", [1, 2, 6])
def test_runs_of_different_sizes_in_quick_succession(threads: int) -> None:
    """More threads than processors: most are still in an earlier run, or late for this one."""
    linears = NativeLinears(torch.float32, threads)
    products = [a_product(linears, 700, 128), a_product(linears, 64, 256)]
    given = [torch.randn(rows, 128 if which == 0 else 256) for rows in (1, 9, 200) for which in (0, 1)]
    expected = [products[i % 2](x) for i, x in enumerate(given)]
    with busy(2):
        for i in range(1500):
            which = i * 7 % len(given)
            assert torch.equal(products[which % 2](given[which]), expected[which])
    linears.pool.close()


TOO_MANY = """
import resource
from pathlib import Path
from djl_python.engine.native.library import KernelsUnavailableError
from djl_python.engine.native.thread_pool import ThreadPool

ThreadPool(1).close()
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (32 << 20), resource.RLIM_INFINITY))
try:
    ThreadPool(20)
except KernelsUnavailableError as reason:
    print(reason)
ThreadPool(1).close()
"""


def test_threads_that_the_system_does_not_give() -> None:
    done = subprocess.run([sys.executable, "-c", TOO_MANY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the system does not give 20 threads\n"), done.stderr


MANY = """
import resource
from pathlib import Path
import torch
from djl_python.engine.native.modules.linears import NativeLinears
from djl_python.engine.reading.recipe.primitives import Linear

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

NativeLinears(torch.float32, 1).pool.close()
before = resident()
linears = NativeLinears(torch.float32, 64)
product = linears.make(Linear(torch.randn(64, 64), None), None)
for _ in range(20):
    product(torch.randn(3, 64))
print((resident() - before) >> 20)
"""


def test_memory_of_many_threads() -> None:
    """What runs count is kept for each thread and each operation: of as many operations as there are."""
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and int(done.stdout) < 32, done
