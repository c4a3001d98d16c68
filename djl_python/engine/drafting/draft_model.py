"""Draft tokens by a smaller model with the same vocabulary. Runs in the engine process.

The draft model has a KV cache of its own with the same block numbers: a sequence's block table is valid there too, and
so is a shared prefix, as far as the draft model has read it. It draws with the same parameters and the same random
numbers as the model will, so that both draw the same token where they nearly agree.
"""

from __future__ import annotations

import time
from collections import abc
from dataclasses import dataclass, field
from typing import Final

import torch

from ..batch.chunk import SequenceChunk
from ..batch.sequence import NO_TOKEN, Sequence
from ..runner.model_runner import sampled_or_logits
from ..runner.opened_model import OpenedModel
from ..sampling.row_sampler import SampledTokens
from ..sampling.sampler import Sampler
from .speculation import ROW_COST, Confidence, Drafts

_WEIGHT: Final = 0.1  # of the newest time in a moving average


@dataclass
class _DraftState:
    """The draft model's state of a sequence.

    Attributes:
        blocks: the sequence's `blocks` list; the sequence has another list object after a preemption.
        computed: leading positions whose keys and values in the draft model's cache are valid.
        guessed: leading positions that are valid if all drafts are accepted.
    """

    blocks: list[int]
    computed: int
    guessed: int = 0
    confidence: Confidence = field(default_factory=Confidence)


class ModelDrafter:
    """A `Drafter` that runs a model.

    Args:
        draft: the draft model, over a cache with as many blocks as the model's own; `close` closes it.
        max_model_len: most tokens of a sequence to draft for.
        block_size: tokens in a block.

    Attributes:
        runner: runs the draft model.
    """

    def __init__(self, draft: OpenedModel, sampler: Sampler, max_model_len: int, block_size: int) -> None:
        self.runner = draft.runner
        self._pick = draft.sampling.pick
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._unread: set[int] = set()  # whole blocks with positions that only the model has read
        self._max_prefill_tokens = draft.scheduling.max_prefill_tokens
        self._close_draft = draft.close
        self._sampler = sampler
        self._shadows: dict[int, _DraftState] = {}
        self._draft_s = 0.0  # one pass of the draft model
        self._model_s = 0.0  # one step of the model
        self._proposed_at = 0.0

    def propose(self, sequences: abc.Sequence[Sequence], ahead: abc.Sequence[int]) -> Drafts:
        began = time.perf_counter()
        cost = ROW_COST + (self._draft_s / self._model_s if self._model_s else 0.0)
        twins: list[tuple[Sequence, int]] = []
        for sequence, most in zip(sequences, ahead, strict=True):
            shadow = self._shadow(sequence)
            count = shadow.confidence.worth(max(0, min(most, self._max_model_len - len(sequence.tokens))), cost)
            if count:
                twins.append((_draft_copy(sequence, shadow), count))
        drafts: Drafts = {}
        left, passes = twins, 0
        while left:
            self._guess([twin for twin, _ in left])
            passes += 1
            left = [(twin, count - 1) for twin, count in left if count > 1]
        for twin, count in twins:
            drafts[twin.id] = tuple(twin.tokens[-count:])
            self._shadows[twin.id].guessed = twin.computed  # `learn` may never hear of them: the step may fail
        self._proposed_at = time.perf_counter()
        if passes:
            self._draft_s = _mean(self._draft_s, (self._proposed_at - began) / passes)
        return drafts

    def learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        shadow = self._shadows[sequence.id]
        self._has_read(shadow, min(shadow.guessed, sequence.computed))
        shadow.confidence.learn(proposed, accepted)

    def follow(self, chunks: abc.Sequence[SequenceChunk]) -> None:
        """Read the prompts that the model reads, in the same pieces."""
        if self._proposed_at and all(chunk.completes for chunk in chunks):
            self._model_s = _mean(self._model_s, time.perf_counter() - self._proposed_at)
        self._proposed_at = 0.0
        for chunk in chunks:
            first, end = chunk.sequence.computed, chunk.sequence.computed + chunk.length
            self._unread.update(chunk.sequence.blocks[first // self._block_size : end // self._block_size])
        pieces = [
            SequenceChunk(twin, min(twin.remaining, chunk.length))
            for chunk in chunks
            if not chunk.drafts
            and chunk.length > 1
            and (end := chunk.sequence.computed + chunk.length) < self._max_model_len
            and (twin := _draft_copy(chunk.sequence, self._shadow(chunk.sequence), end)).remaining
        ]
        for piece in pieces:
            self._catch_up(piece.sequence, leave=piece.length)
        if pieces:
            self.runner.run(pieces)
        for piece in pieces:
            self._has_read(self._shadows[piece.sequence.id], len(piece.sequence.tokens))

    def forget(self, sequence: Sequence) -> None:
        self._shadows.pop(sequence.id, None)

    def close(self) -> None:
        self._close_draft()

    def _shadow(self, sequence: Sequence) -> _DraftState:
        shadow = self._shadows.get(sequence.id)
        if shadow is None or shadow.blocks is not sequence.blocks:
            # The sequence that a prefix is shared with has computed it, here too unless drafts were not worth it.
            whole = sequence.blocks[: sequence.computed // self._block_size]
            read = next((index for index, block in enumerate(whole) if block in self._unread), len(whole))
            shadow = self._shadows[sequence.id] = _DraftState(sequence.blocks, read * self._block_size)
        return shadow

    def _has_read(self, shadow: _DraftState, end: int) -> None:
        """Note that the sequence's first `end` positions are valid."""
        size = self._block_size
        self._unread.difference_update(shadow.blocks[shadow.computed // size : end // size])
        shadow.computed = end

    def _catch_up(self, twin: Sequence, leave: int) -> None:
        """Read the tokens generated while drafts were not worth it, except for the last `leave`."""
        while twin.remaining > leave:
            length = min(twin.remaining - leave, self._max_prefill_tokens)
            self.runner.run([SequenceChunk(twin, length)])
            twin.computed += length

    def _guess(self, twins: list[Sequence]) -> None:
        """Draft one token for each sequence, and append it."""
        for twin in twins:
            self._catch_up(twin, leave=2)  # the last token, and the last draft, unread, if all were accepted
        chunks = [SequenceChunk(twin, twin.remaining) for twin in twins]
        asked = self._sampler.ask(twins)
        output = sampled_or_logits(self.runner, self._pick, chunks, asked)
        if isinstance(output, SampledTokens):
            tokens = output.token_ids
        else:
            with torch.inference_mode():
                tokens = [drawn.token_id for drawn in self._sampler.sample(output, twins, asked)]
        for twin, token in zip(twins, tokens, strict=True):
            twin.computed = len(twin.tokens)
            # Where the draft model's scores are NaN, any token will do: the model checks it.
            twin.tokens.append(0 if token == NO_TOKEN else token)


def _draft_copy(sequence: Sequence, shadow: _DraftState, end: int | None = None) -> Sequence:
    """A copy of the sequence's first `end` tokens, to draft after; `computed` as far as the draft's cache is valid."""
    return Sequence(
        sequence.id,
        sequence.tokens[:end],
        sequence.prompt_length,
        sequence.sampling,
        computed=min(shadow.computed, end or len(sequence.tokens)),
        blocks=sequence.blocks,
        prompt_entries=sequence.prompt_entries,
        long_rope=sequence.long_rope,
    )


def _mean(mean: float, newest: float) -> float:
    return mean + _WEIGHT * (newest - mean) if mean else newest
