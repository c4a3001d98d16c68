"""What a GGUF file's tokens cost of processor time, by this engine and by llama.cpp's library: no server, one thread.

    python -m tests.bench.gguf_steps --model model-Q4_K_M.gguf --sequences 1,8,32

For machines that others use too, where seconds on the clock say nothing: `gguf.py` measures servers on a quiet one. A
processor's caches are shared all the same, so rows are some 10 % apart from one run to the next.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from djl_python.bench.arguments import counts
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.settings import BuiltInSettings
from djl_python.sources import local_path
from tests.bench.peers import DEFAULT_HOME, HERE, LlamaCpp
from tests.real import gguf_files


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="GGUF file (default: SmolLM2-135M-Instruct's)")
    parser.add_argument("--peers-dir", type=Path, default=DEFAULT_HOME, metavar="DIR")
    parser.add_argument("--sequences", type=counts, default=[1, 8, 32], metavar="N,...")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=33)
    options = parser.parse_args(argv)
    if options.model is None:
        gguf_files.fetch_files()
        options.model = gguf_files.model()
    file = options.model.resolve()
    peer = LlamaCpp(options.peers_dir.expanduser().resolve())
    print(f"{'':<14}{'sequences':>10}{'prompt/s':>10}{'output/s':>10}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        batch = _opened(local_path(str(file), "", Path(folder)), options.prompt_tokens + options.output_tokens)
        try:
            for number in options.sequences:
                shape = number, options.prompt_tokens, options.output_tokens
                print(_row("djl-serving", number, _ours(batch, *shape)), flush=True)
                if peer.installed:
                    print(_row("llama.cpp", number, _llama_cpp(peer, file, shape)), flush=True)
        finally:
            batch.close()
    return 0


def _row(name: str, number: int, speeds: tuple[float, float]) -> str:
    return f"{name:<14}{number:>10}{speeds[0]:>10.1f}{speeds[1]:>10.1f}"


def _opened(described: Path, tokens: int) -> PagedRollingBatch:
    settings = BuiltInSettings(
        model_path=str(described), dtype="bf16", max_model_len=tokens + 16, max_batch_size=32, threads=1
    )
    return PagedRollingBatch(settings, lambda what, done, total: None)


def _ours(batch: PagedRollingBatch, sequences: int, prompt: int, output: int) -> tuple[float, float]:
    """Prompt tokens, and generated tokens after each sequence's first, per second of this process."""
    rng = random.Random(f"{sequences}")
    params = SamplingParams(max_new_tokens=output, ignore_eos=True, logprobs=False)
    for number in range(sequences):
        batch.add(SequenceRequest([rng.randrange(100, 40000) for _ in range(prompt)], params, id=number))
    started = begun = time.process_time()
    seen, made, before = set[int](), 0, 0
    while not batch.idle:
        events = batch.step()
        made += len(events)
        waiting = len(seen) < sequences
        seen.update(event.request_id for event in events)
        if waiting and len(seen) == sequences:
            begun, before = time.process_time(), made
    return sequences * prompt / (begun - started), (made - before) / (time.process_time() - begun)


def _llama_cpp(peer: LlamaCpp, file: Path, shape: tuple[int, int, int]) -> tuple[float, float]:
    command = list(map(str, (peer.python, HERE / "llama_steps.py", *peer.library, file, *shape)))
    told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return float(told[0]), float(told[1])


if __name__ == "__main__":
    main()
