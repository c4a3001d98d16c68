"""What this machine could do at best: the bandwidth of its memory and the peak of its matrix units.

    python -m tests.bench.machine

Measured in a process of its own, so that its threads are gone when servers are measured. The bandwidth is a C
program's, or torch's where there is no compiler. A virtual machine's bandwidth can double within minutes, as its cores
are moved to one last cache or two: it is measured beside every server, and medians count as theirs do.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def measure() -> dict[str, Any]:
    """Name, kind, cores, versions; `read_gb_s`; `gemm_gflop_s` by number format. Takes seconds of an idle machine."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.bench.machine"], cwd=HERE.parents[1], stdout=subprocess.PIPE, check=True
    )
    figures: dict[str, Any] = json.loads(ended.stdout)
    return figures


def typical(machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The medians of one or more of `measure`'s results, and `read_gb_s_seen`, the least and the most."""
    reads = [one["read_gb_s"] for one in machines]
    peaks = {
        name: round(statistics.median(one["gemm_gflop_s"][name] for one in machines), 1)
        for name in machines[0]["gemm_gflop_s"]
    }
    read = {"read_gb_s": round(statistics.median(reads), 2), "read_gb_s_seen": [min(reads), max(reads)]}
    return {**machines[0], **read, "gemm_gflop_s": peaks}


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


def _compiled_read_gb_s() -> float | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "machine"
        command = [
            compiler,
            "-O3",
            "-ffast-math",
            "-march=native",
            "-fopenmp",
            str(HERE / "machine.c"),
            "-o",
            str(program),
        ]
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
            return None  # a compiler without OpenMP
        return float(subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout)


def _best_s(call: Callable[[], object], times: int) -> float:
    best_s = float("inf")
    for _ in range(times):
        began_s = time.perf_counter()
        call()
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s


def main() -> None:
    """Print `measure`'s result as JSON."""
    import torch
    import transformers

    from djl_python.engine.native.compiling import processors_here

    read_gb_s, by = _compiled_read_gb_s(), "a C program"
    if read_gb_s is None:
        data, by = torch.ones(2**27), "torch"
        read_gb_s = round(data.numel() * 4 / _best_s(data.sum, 8) / 1e9, 2)
    size = 2048
    gemm = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        left, right = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        best_s = _best_s(lambda left=left, right=right: torch.nn.functional.linear(left, right), 12)  # type: ignore[misc]
        gemm[name] = round(2 * size**3 / best_s / 1e9, 1)
    kinds = [processor.name for processor in processors_here()]
    figures = {
        "cpu": _cpu_name(),
        "kind": kinds[0] if kinds else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "read_gb_s": read_gb_s,
        "read_by": by,
        "gemm_gflop_s": gemm,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
