"""The built-in engine: any causal language model of transformers under continuous batching. Engine process.

A step reads: schedule, run, sample, append.
"""

from __future__ import annotations

import itertools
import logging
import time

import torch
from torch import Tensor

from ..errors import GenerationError, ParameterError
from ..types import EngineStats, SamplingParams, TokenEvent
from .kv_cache import BlockManager
from .model_runner import ModelRunner, rows_of
from .rolling_batch import EngineSettings, Progress, RollingBatch
from .runners import open_runner
from .sampler import Sampler, prompt_entries
from .scheduler import Chunk, Scheduler
from .sequence import PromptEntry, Sequence

log = logging.getLogger(__name__)


class PagedRollingBatch(RollingBatch):
    """Scheduler, model runner and sampler, put together."""

    def __init__(self, settings: EngineSettings, progress: Progress) -> None:
        opened = open_runner(settings, progress)
        self.runner: ModelRunner = opened.runner
        self._eos_ids = opened.loaded.eos_ids
        self.max_model_len = opened.max_model_len
        self.max_batch_size = settings.max_batch_size
        self.kv_blocks, self.block_size = opened.kv_blocks, settings.block_size
        self.description = opened.description
        self.weight_bytes = opened.weight_bytes
        self.scheduler = Scheduler(
            BlockManager(opened.kv_blocks, settings.block_size, share=opened.share_prefixes),
            max_sequences=settings.max_batch_size,
            max_prefill_tokens=opened.max_prefill_tokens,
        )
        self.sampler = Sampler(opened.loaded.vocabulary, opened.loaded.eos_ids, opened.loaded.device)
        self.vocabulary = opened.loaded.vocabulary
        self._sequences: dict[int, Sequence] = {}
        self._chunks: list[Chunk] = []
        self._step_s = 0.0

    def add(self, request_id: int, prompt_ids: list[int], sampling: SamplingParams) -> None:
        if not prompt_ids:
            raise ParameterError("the prompt has no tokens", "inputs")
        if len(prompt_ids) >= self.max_model_len:
            raise ParameterError(
                f"the prompt has {len(prompt_ids)} tokens; with at least one to generate, the model's context of "
                f"{self.max_model_len} has room for {self.max_model_len - 1}",
                "inputs",
            )
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < self.vocabulary:
            raise ParameterError(f"a prompt token id is outside the vocabulary of {self.vocabulary}", "inputs")
        entries: list[PromptEntry] = [(None, ())] if sampling.prompt_logprobs is not None else []
        sequence = Sequence(request_id, list(prompt_ids), len(prompt_ids), sampling, prompt_entries=entries)
        self._sequences[request_id] = sequence
        self.scheduler.add(sequence)

    def cancel(self, request_id: int) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._end(sequence)

    def step(self) -> list[TokenEvent]:
        began = time.perf_counter()
        self._chunks = []
        self._chunks = chunks = self.scheduler.schedule()
        logits = self.runner.run(chunks)
        # where each chunk's rows end, before anything changes what rows a chunk wants
        ends = list(itertools.accumulate(rows_of(chunk) for chunk in chunks))
        self._keep_prompt_entries(chunks, ends, logits)
        events = self._sample(chunks, ends, logits)
        self._step_s = time.perf_counter() - began
        return events

    def isolate(self, cause: Exception) -> list[TokenEvent]:
        if not self._chunks:
            raise cause  # not a request's fault: the scheduler itself is broken
        culprit = self.scheduler.isolate(self._chunks)
        if culprit is None:
            log.warning("a step of %d sequences failed (%s): repeating it one by one", len(self._chunks), cause)
            return []
        self._end(culprit)
        message = f"generation failed: {type(cause).__name__}: {cause}"
        return [TokenEvent(request_id=culprit.id, token_id=-1, error=GenerationError(message).message)]

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    @property
    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_blocks_used=scheduler.blocks.used,
            kv_blocks_total=scheduler.blocks.total,
            preemptions=scheduler.preemptions,
            step_s=self._step_s,
            step_tokens=sum(chunk.length for chunk in self._chunks),
        )

    def _sample(self, chunks: list[Chunk], ends: list[int], logits: Tensor) -> list[TokenEvent]:
        """Draw for the sequences whose last position was computed, and note what this step computed."""
        drawing = [(chunk.sequence, end - 1) for chunk, end in zip(chunks, ends, strict=True) if chunk.completes]
        sequences, rows = [sequence for sequence, _ in drawing], [row for _, row in drawing]
        if len(logits) != len(rows):
            logits = logits[rows]
        with torch.inference_mode():
            sampled = self.sampler.sample(logits, sequences) if sequences else []
        self.scheduler.advance(chunks)
        events = []
        for sequence, drawn in zip(sequences, sampled, strict=True):
            event = sequence.append(drawn.token_id, drawn.logprob, drawn.top, self._eos_ids, self.max_model_len)
            if event.finish is not None:
                self._end(sequence)
            events.append(event)
        return events

    @staticmethod
    def _keep_prompt_entries(chunks: list[Chunk], ends: list[int], logits: Tensor) -> None:
        """Log-probabilities of the prompt tokens that follow the positions of this step."""
        for chunk, end in zip(chunks, ends, strict=True):
            sequence = chunk.sequence
            if not sequence.wants_prompt_logprobs:
                continue
            following = sequence.computed + 1  # the prompt position that this chunk's first row predicts
            # A sequence that was preempted comes by here again: skip what it has.
            first = max(following, len(sequence.prompt_entries))
            last = min(following + chunk.length, sequence.prompt_length)
            if first < last:
                start = end - chunk.length - following
                sequence.prompt_entries += prompt_entries(
                    logits[start + first : start + last],
                    sequence.tokens[first:last],
                    sequence.sampling.prompt_logprobs or 0,
                )

    def _end(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        self.scheduler.remove(sequence)
        self.runner.forget(sequence)
        self.sampler.forget(sequence)
