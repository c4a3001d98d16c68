"""The protocol of runners, which compute a step's logits or its tokens, for any backend. Runs in the engine process."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from ..adapters.peft_files import LoraAdapter
from ..batch.chunk import SequenceChunk
from ..batch.sequence import Sequence
from ..sampling.row_sampler import SampledTokens, SamplingRequest


class ModelRunner(Protocol):
    """Computes the logits of a step."""

    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        """Compute the chunks' tokens.

        Returns:
            (rows, vocabulary): for each chunk in order, its last position before drafts and those of its drafts if it
            completes its sequence, or all that are not an encoder's if prompt log-probabilities are wanted (`rows_of`
            counts them).
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop data outside the cache's blocks for a sequence that has ended, or will begin again."""
        ...

    def operator_seconds(self) -> dict[str, float]:
        """Seconds spent so far, by kind of operation; empty if only a profiler can measure it."""
        ...


@runtime_checkable
class AdapterRunner(ModelRunner, Protocol):
    """A runner that computes each sequence with its own LoRA adapter, in one step.

    It holds adapters in slots. A sequence's `adapter_slot` says which one is its own: 0, none. A slot that running
    sequences name is never loaded or unloaded.
    """

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        """Hold an adapter, of modules that this model has, in the place of whatever the slot held.

        Args:
            slot: 1 or more.

        Raises:
            MemoryError, torch.OutOfMemoryError: there is no memory for it; the slot is empty.
        """
        ...

    def unload_adapter(self, slot: int) -> None:
        """Release what a slot holds, if anything."""
        ...


class Pick(Protocol):
    """A shorter way to a step's tokens than through all logits."""

    def __call__(self, chunks: list[SequenceChunk], asked: SamplingRequest) -> SampledTokens | Tensor | None:
        """Compute the chunks' tokens, and choose one for each row that `ModelRunner.run` would return, at least one.

        Args:
            asked: of these rows, with a `simple` plan.

        Returns:
            What `RowSampler.choose` would choose, with nearly its log-probabilities; the logits if they were needed; or
            None, with nothing computed, if `run` is as fast.
        """
        ...


def sampled_or_logits(
    runner: ModelRunner, pick: Pick, chunks: list[SequenceChunk], asked: SamplingRequest
) -> SampledTokens | Tensor:
    """Compute the chunks' tokens; returns what `pick` chooses if it can, else the logits that `run` returns.

    Args:
        asked: of the rows that are sampled.
    """
    whole = any(chunk.sequence.wants_prompt_logprobs for chunk in chunks)
    picked = pick(chunks, asked) if asked.plan.simple and asked.positions and not whole else None
    return runner.run(chunks) if picked is None else picked


def rows_of(chunk: SequenceChunk) -> int:
    """How many rows of logits `ModelRunner.run` returns for this chunk."""
    if chunk.sequence.wants_prompt_logprobs:
        return chunk.length - chunk.encoder_length
    return 1 + len(chunk.drafts) if chunk.completes else 0
