"""How much of a GPU's memory a step takes, beside weights and cache. Runs in the engine process, once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from ...core.errors import MemoryLoadError
from ...core.sequence_request import SequenceRequest
from ...core.types import SamplingParams
from ..batch.chunk import SequenceChunk
from ..batch.sequence import Sequence
from ..checkpoints.loading import LoadedModel
from ..runner.model_runner import ModelRunner
from ..runner.probe_steps import probe_step
from ..sampling.sampler import Sampler
from ..settings import BuiltInSettings
from ..torch_backend.paging import PROBE_BLOCK

# The most that sampling takes: rows are copied for the penalties, weighed for the draw, and cut where top_p ends.
_SAMPLING = SamplingParams(max_new_tokens=1, do_sample=True, top_p=0.5, repetition_penalty=1.1)


def step_bytes(
    settings: BuiltInSettings,
    loaded: LoadedModel,
    longest: int,
    probe: Callable[[int], AbstractContextManager[ModelRunner]],
) -> int:
    """The memory that activations and sampling take at most; 0 where nobody needs to know, as on CPUs.

    Args:
        longest: tokens of a sequence.
        probe: a runner over a cache with room for so many tokens of a sequence, in blocks from 0 on; for as many again
            of an encoder, where the model has one.

    Raises:
        MemoryLoadError: there is not that much.
    """
    device = loaded.device
    if device.type != "cuda" or settings.kv_cache_memory_mb is not None or settings.kv_blocks is not None:
        return 0
    tokens = min(settings.max_prefill_tokens, longest - 1)
    try:
        with probe(tokens) as runner:
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            _largest_step(settings, loaded, tokens, runner)
            taken = torch.cuda.max_memory_allocated(device) - before
    except torch.OutOfMemoryError as exc:
        raise MemoryLoadError(
            f"no memory for a step of {tokens} prompt tokens beside the weights: "
            "lower option.max_rolling_batch_prefill_tokens"
        ) from exc
    return taken


def _largest_step(settings: BuiltInSettings, loaded: LoadedModel, tokens: int, runner: ModelRunner) -> None:
    """Read a prompt of as many tokens as a step may have, and draw for as many sequences as it may."""
    ids = [each % loaded.vocabulary for each in range(tokens)]
    encoder_ids = ids if loaded.decoder is not None else []
    sequence = Sequence.of(SequenceRequest(ids, _SAMPLING, encoder_ids=encoder_ids), PROBE_BLOCK)
    sequence.blocks = list(range(len(sequence.tokens)))
    logits = probe_step(runner, SequenceChunk(sequence, len(sequence.tokens)))
    runner.forget(sequence)
    drawing = [Sequence(number, ids, tokens, _SAMPLING) for number in range(settings.max_batch_size)]
    with torch.inference_mode():
        Sampler(loaded.vocabulary, loaded.eos_ids, logits.device).sample(logits.expand(len(drawing), -1), drawing)
