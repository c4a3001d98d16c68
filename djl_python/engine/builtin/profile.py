"""`python -m djl_python.engine.builtin.profile MODEL`: measures the parts of a decode step. A process of its own.

Prints the wall time of the step's phases (medians over steps), and of the model's forward pass by kind of operator: by
the native program's own clock, or by torch's profiler, on a GPU by the time of its kernels. The sequences' sampling
parameters are a mixture of all kinds. The floor that it prints is a lower bound of a step: the time to read the
weights' bytes once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from ...core.sequence_request import SequenceRequest
from ...core.types import SamplingParams
from ..settings import BuiltInSettings
from .opening import open_batch
from .paged_batch import PagedRollingBatch

_KINDS: Final = {
    "linear": ("aten::addmm", "aten::mm", "aten::linear", "mkldnn::", "aten::bmm", "aten::matmul"),
    "attention": ("aten::scaled_dot_product", "aten::_scaled_dot_product", "aten::_flash", "aten::_efficient"),
    "cache": ("aten::index", "aten::index_copy", "aten::masked_fill"),
}


# Sampling parameters of the sequences, in turn. Half of them show log-probabilities, as TGI's and LMI's streams do.
_MIXTURE: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"do_sample": True, "temperature": 0.8, "logprobs": False},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.9},
    {"do_sample": True, "temperature": 0.7, "top_k": 50, "logprobs": False},
    {"do_sample": True, "min_p": 0.05},
    {"do_sample": True, "top_p": 0.95, "repetition_penalty": 1.1, "logprobs": False},
    {"top_logprobs": 5},
    {"do_sample": True, "logprobs": False},
)


class Timed:
    """Calls through to a method and adds up how long it took, until the device has done it."""

    def __init__(self, method: Any, device: torch.device) -> None:
        self._method = method
        self._device = device
        self.seconds: list[float] = []

    def __call__(self, *arguments: Any) -> Any:
        began = time.perf_counter()
        result = self._method(*arguments)
        _wait_for(self._device)
        self.seconds.append(time.perf_counter() - began)
        return result


def _wait_for(device: torch.device) -> None:
    """A GPU's work is only launched when an operation returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _time(owner: object, method: str, device: torch.device) -> Timed:
    """Put a timer in front of a method of this one object."""
    timed = Timed(getattr(owner, method), device)
    setattr(owner, method, timed)
    return timed


def measure(settings: BuiltInSettings, context: int, steps: int) -> dict[str, Any]:
    """Decode `steps` tokens for as many sequences as fit a batch, which already have `context` tokens.

    Returns:
        Milliseconds: `step`, its phases `schedule`, `model`, `sample` and `rest`, the model's `operators` by kind, and
        `floor`, the time to read the weights once at the bandwidth that was measured just before.
    """
    with closing(open_batch(settings, lambda what, done, total: None)) as batch:
        return _measure(batch, context, steps)


def _measure(batch: PagedRollingBatch, context: int, steps: int) -> dict[str, Any]:
    batch_size = batch.max_batch_size
    for number in range(batch_size):
        prompt = [(number * 31 + i) % batch.vocabulary for i in range(context)]
        mixed = _MIXTURE[number % len(_MIXTURE)]
        # Sequences that begin first decode while the others' prompts are read, for as many steps as that takes.
        most = batch.max_model_len - context
        sampling = SamplingParams(max_new_tokens=most, ignore_eos=True, seed=number, **mixed)
        batch.add(SequenceRequest(prompt, sampling, id=number))
    while batch.stats.running < batch_size or any(s.remaining > 1 for s in batch.scheduler.running):
        batch.step()
    phases = {
        name: _time(owner, method, batch.device)
        for name, owner, method in (
            ("schedule", batch.scheduler, "schedule"),
            ("model", batch.runner, "run"),
            ("sample", batch.sampler, "sample"),
        )
    }
    whole = Timed(batch.step, batch.device)
    for _ in range(steps):
        whole()
    result = {name: _median_ms(timed.seconds) for name, timed in phases.items()}
    step = _median_ms(whole.seconds)
    return {
        "batch": batch_size,
        "context": context,
        "step": step,
        **result,
        "rest": round(step - sum(result.values()), 3),
        "operators": _operators(batch, steps),
        "floor": float(f"{batch.weight_bytes / _bandwidth_bytes_s(batch.device) * 1e3:.3g}"),
    }


def _median_ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 3)


def _operators(batch: PagedRollingBatch, steps: int) -> dict[str, float]:
    """Milliseconds of self time per step, by kind of operator. torch's profiler itself slows small operators down."""
    before = batch.runner.operator_seconds()
    if before:
        for _ in range(steps):
            batch.step()
        spent = {kind: s - before[kind] for kind, s in batch.runner.operator_seconds().items() if s > before[kind]}
        return {kind: round(s / steps * 1e3, 3) for kind, s in sorted(spent.items(), key=lambda item: -item[1])}
    on_gpu = batch.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as recorded:
        for _ in range(steps):
            batch.step()
        _wait_for(batch.device)
    totals: dict[str, float] = defaultdict(float)
    for event in recorded.key_averages():
        if event.device_type.name != "CPU":
            continue  # a kernel, whose time is that of the operator which launched it
        kind = next((k for k, prefixes in _KINDS.items() if event.key.startswith(prefixes)), "other operators")
        totals[kind] += (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e3 / steps
    return {kind: round(total, 3) for kind, total in sorted(totals.items(), key=lambda item: -item[1])}


def _bandwidth_bytes_s(device: torch.device) -> float:
    """Read bandwidth of all threads, or of the GPU, over 512 MiB, best of five."""
    data = torch.ones(2**27, device=device)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        data.sum()
        _wait_for(device)
        best = min(best, time.perf_counter() - began)
    return data.numel() * data.element_size() / best


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m djl_python.engine.builtin.profile", description=__doc__)
    parser.add_argument("model", type=Path, help="directory of a transformers checkpoint")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="sequences in the batch")
    parser.add_argument("--context", type=int, default=128, help="tokens each sequence has already")
    parser.add_argument("--steps", type=int, default=30, help="steps to measure")
    parser.add_argument("--dtype", default="auto", help="auto, fp32, bf16 or fp16")
    parser.add_argument("--quantize", default="none", help="none, int8 or int4")
    parser.add_argument(
        "--threads", type=int, help="CPU threads (default: all cores, within the CPU limit of a container)"
    )
    parser.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--json", action="store_true", help="print one JSON list and nothing else")
    arguments = parser.parse_args()
    results = [
        measure(
            BuiltInSettings(
                model_path=str(arguments.model),
                max_batch_size=size,
                max_prefill_tokens=2048,
                dtype=arguments.dtype,
                quantize=arguments.quantize,
                threads=arguments.threads,
                enforce_eager=arguments.enforce_eager,
            ),
            arguments.context,
            arguments.steps,
        )
        for size in arguments.batch
    ]
    if arguments.json:
        print(json.dumps(results))
        return
    for result in results:
        print("batch {batch}, context {context}: {step} ms a step (floor {floor})".format(**result))
        for phase in ("schedule", "model", "sample", "rest"):
            print(f"  {phase:<16} {result[phase]:8.3f} ms")
        for kind, milliseconds in result["operators"].items():
            print(f"    {kind:<14} {milliseconds:8.3f} ms")


if __name__ == "__main__":
    main()
