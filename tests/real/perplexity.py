"""Perplexity of a checkpoint over this folder's text, by the engine and by transformers.

python -m tests.real.perplexity MODEL --dtype bf16 [--quantize int8 | --transformers]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from djl_python.core.cpu_limit import available_cpus
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.interface import RollingBatch
from djl_python.engine.settings import BuiltInSettings
from tests.engines import run_to_end
from tests.real.texts import WINDOW, windows

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def of_engine(batch: RollingBatch, texts: Sequence[Sequence[int]]) -> float:
    """Perplexity by the prompts' log-probabilities."""
    return _perplexity(engine_logprobs(batch, texts))


def engine_logprobs(batch: RollingBatch, texts: Sequence[Sequence[int]]) -> list[float]:
    """Log-probabilities of all tokens but the first, of each text in turn."""
    for number, text in enumerate(texts):
        batch.add(
            SequenceRequest(list(text), SamplingParams(max_new_tokens=1, ignore_eos=True, prompt_logprobs=0), id=number)
        )
    events = run_to_end(batch)
    return [float(logprob or 0) for number in range(len(texts)) for logprob, _ in events[number][0].prompt[1:]]


def of_transformers(model: Any, texts: Sequence[Sequence[int]]) -> float:
    """Perplexity by the model's own logits."""
    return _perplexity([logprob for text in texts for logprob in transformers_logprobs(model, text)])


def transformers_logprobs(model: Any, text: Sequence[int]) -> list[float]:
    """Log-probabilities of all tokens but the first."""
    ids = torch.tensor([text])
    with torch.inference_mode(), all_threads():
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
    token_logprobs: list[float] = logprobs.gather(1, ids[0, 1:, None]).flatten().tolist()
    return token_logprobs


@contextmanager
def all_threads() -> Iterator[None]:
    """Context in which torch uses every processor; an open engine has it use one."""
    before = torch.get_num_threads()
    torch.set_num_threads(available_cpus())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _perplexity(logprobs: Sequence[float]) -> float:
    return math.exp(-math.fsum(logprobs) / len(logprobs))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.real.perplexity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--quantize", choices=("none", "int8", "int4"), default="none")
    parser.add_argument("--kernels", choices=("auto", "native", "torch"), default="auto")
    parser.add_argument("--transformers", action="store_true", help="by transformers, without the engine")
    arguments = parser.parse_args()
    texts = windows(AutoTokenizer.from_pretrained(arguments.checkpoint))
    if arguments.transformers:
        model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=DTYPES[arguments.dtype])
        print(of_transformers(model, texts))
        return
    settings = BuiltInSettings(
        model_path=str(arguments.checkpoint),
        dtype=arguments.dtype,
        quantize=arguments.quantize,
        kernels=arguments.kernels,
        max_model_len=WINDOW + 1,
    )
    batch = PagedRollingBatch(settings, lambda what, done, total: None)
    print(batch.description)
    print(of_engine(batch, texts))
    batch.close()


if __name__ == "__main__":
    main()
