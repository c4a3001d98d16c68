"""The built-in engine: any causal language model of transformers under continuous batching. Engine process.

A step is: schedule, run, sample, append.
"""

from __future__ import annotations

import itertools
import logging
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final

import msgspec
import torch
from torch import Tensor

from ...core.engine_info import EngineStats
from ...core.errors import GenerationError, ModelLoadError, ParameterError
from ...core.metrics import MetricFamily
from ...core.sequence_request import SequenceRequest
from ...core.types import TokenEvent, Vocabulary
from ..batch.chunk import SequenceChunk
from ..batch.kv_cache import BlockManager
from ..batch.scheduler import Scheduler
from ..batch.sequence import Sequence
from ..checkpoints.draft_size import draft_size
from ..checkpoints.loading import threads_of
from ..devices.pipeline_parallel import check_stages
from ..devices.tensor_parallel import degree_of
from ..devices.transfers import indices
from ..drafting.speculation_setup import open_speculation
from ..interface import PendingAdapter, ProbeIds, Progress, RollingBatch, error_event
from ..native.api import PrefaultedRegions
from ..opening.open_model import open_model
from ..parallel.ranks import open_shared
from ..runner.model_runner import AdapterRunner, ModelRunner, rows_of, sampled_or_logits
from ..sampling.grammar import CompiledGrammar, Matcher
from ..sampling.grammar_compiler import GrammarCompiler
from ..sampling.row_sampler import SampledTokens
from ..sampling.sampler import Sampled, Sampler, prompt_entries, ranks_of, sampled
from ..settings import BuiltInSettings
from .batch_adapters import BatchAdapters

log = logging.getLogger(__name__)

# How long a step waits for a grammar if there is nothing else to do: messages that arrive meanwhile wait, too.
_COMPILE_WAIT_S: Final = 0.02
# How long the loop waits for messages if all sequences wait for adapters that are being read.
_READ_WAIT_S: Final = 0.005


class PagedRollingBatch(RollingBatch):
    """Combines scheduler, model runner and sampler; `open_model` describes the further arguments.

    Attributes:
        chunks: what the last step computed, or tried to.
    """

    def __init__(
        self,
        settings: BuiltInSettings,
        progress: Progress,
        prefaulted: PrefaultedRegions | None = None,
        probe_ids: ProbeIds = lambda: [],
    ) -> None:
        if settings.tensor_parallel_degree != 1:
            progress("importing transformers", 0, 0)
            settings = msgspec.structs.replace(settings, tensor_parallel_degree=degree_of(settings))
        if settings.pipeline_parallel_degree != 1:
            check_stages(settings)
        draft = draft_size(settings)
        if settings.ranks == 1:
            opened = open_model(settings, progress, prefaulted, draft, probe_ids)
        else:
            opened = open_shared(settings, progress, draft, probe_ids)
        settings = msgspec.structs.replace(settings, probe_ids=settings.probe_ids or probe_ids())  # for a draft model
        self.runner: ModelRunner = opened.runner
        self.device = opened.loaded.device
        # Blocks written by a failed step are overwritten; its changes of states can't be undone.
        self._repeats_steps = opened.scheduling.repeats_steps
        self._repeatable = opened.memory.share_prefixes and opened.memory.states is None
        self._eos_ids = opened.loaded.eos_ids
        self.max_model_len = opened.memory.max_model_len
        self.max_batch_size = opened.scheduling.sequences or settings.max_batch_size
        self.kv_blocks, self.block_size = opened.memory.kv_blocks, settings.block_size
        self.description = opened.description
        self.takes_images = opened.takes_images
        self.decoder = opened.loaded.decoder
        self.info = msgspec.structs.replace(opened.info, shares_prefixes=opened.memory.share_prefixes)
        self.weight_bytes = opened.info.weight_bytes
        self._adapters: BatchAdapters | None = None
        if settings.enable_lora:
            if not isinstance(self.runner, AdapterRunner):
                raise ModelLoadError(f"{opened.description}: it runs without LoRA adapters (option.enable_lora)")
            self._adapters = BatchAdapters(settings, self.runner, opened.targets, progress)
        self.scheduler = Scheduler(
            BlockManager(
                opened.memory.kv_blocks,
                settings.block_size,
                share=opened.memory.share_prefixes,
                resident_blocks=opened.memory.resident_blocks,
                states=opened.memory.states,
            ),
            max_sequences=self.max_batch_size,
            max_prefill_tokens=opened.scheduling.max_prefill_tokens,
            short_context=opened.scheduling.short_context,
            whole_prompts=opened.scheduling.whole_prompts,
            adapters=None if self._adapters is None else self._adapters.slots,
            on_preempt=self.runner.forget,
        )
        self._row_sampler = opened.sampling.row_sampler
        self._pick = opened.sampling.pick
        self._close_runner = opened.close
        self.sampler = Sampler(
            opened.loaded.vocabulary,
            opened.loaded.eos_ids,
            opened.loaded.device,
            opened.sampling.row_sampler,
            threads_of(settings),
        )
        self.vocabulary: int = opened.loaded.vocabulary
        self.grammars = GrammarCompiler(opened.loaded.vocabulary, opened.loaded.eos_ids)
        self.speculation = open_speculation(settings, opened, self.sampler, progress)
        self._compiling: dict[int, Future[CompiledGrammar]] = {}
        self._sequences: dict[int, Sequence] = {}
        self.chunks: list[SequenceChunk] = []
        self._events: list[TokenEvent] = []  # of the step so far: a failure later in it does not take them back
        self._step_s = 0.0

    def add(self, request: SequenceRequest) -> None:
        prompt_ids, sampling = request.prompt_ids, request.sampling
        if not prompt_ids:
            raise ParameterError("the prompt has no tokens", "inputs")
        if len(prompt_ids) >= self.max_model_len:
            raise ParameterError(
                f"the prompt has {len(prompt_ids)} tokens; with at least one to generate, the model's context of "
                f"{self.max_model_len} has room for {self.max_model_len - 1}",
                "inputs",
            )
        self._check_encoded(request)
        ids = [*prompt_ids, *request.encoder_ids]
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise ParameterError(f"a prompt token id is outside the vocabulary of {self.vocabulary}", "inputs")
        if any(not 0 <= token < self.vocabulary for token in sampling.logit_bias):
            raise ParameterError(f"a token id is outside the vocabulary of {self.vocabulary}", "logit_bias")
        sequence = Sequence.of(request, self.block_size)
        if self.decoder is not None and sampling.grammar is None and not sampling.ignore_eos:
            sequence.forced_last = self.decoder.forced_eos
        if sampling.prompt_logprobs is not None:
            sequence.prompt_entries.append((None, ()))
            sequence.prompt_ranks.append(None)
        if sampling.bad_words_ids:
            possible = self._possible(sampling.bad_words_ids)
            sequence.sampling = msgspec.structs.replace(sampling, bad_words_ids=possible)
        if self._adapters is not None:
            self._adapters.begin(sequence, request.adapter, request.adapter_version)
        if sampling.grammar is None:
            self.scheduler.add(sequence)
        else:
            self._compiling[request.id] = self.grammars.compile(sampling.grammar)
        self._sequences[request.id] = sequence

    def _check_encoded(self, request: SequenceRequest) -> None:
        """Check that an encoder-decoder model's encoder has tokens to read, and not too many.

        Raises:
            ParameterError: says what was expected.
        """
        length = len(request.encoder_ids)
        if self.decoder is None:
            if length:
                raise ParameterError("the model has no encoder", "inputs")
            return
        if not 0 < length <= self.max_model_len:
            raise ParameterError(
                f"the encoder would read {length} tokens; expected 1 to {self.max_model_len}", "inputs"
            )
        if request.sampling.prompt_logprobs is not None:
            raise ParameterError("the tokens that an encoder reads have no log-probabilities", "inputs")

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        self.grammars.set_vocabulary(vocabulary)

    def cancel(self, request_id: int) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._end(sequence)

    def step(self) -> list[TokenEvent]:
        began = time.perf_counter()
        self.chunks, self._events, self._step_s = [], [], 0.0
        refused = [*self._admit_compiled(), *self._refuse_without_adapter()]
        if refused or self.scheduler.idle:
            return refused  # at once: they would be lost if the rest of the step failed
        self.chunks = self.scheduler.schedule()
        if not self.chunks:
            return []
        for chunk in self.chunks:
            if chunk.sequence.began_s is None:
                chunk.sequence.began_s = began
        self.chunks = chunks = self._speculate(self.chunks)  # apart: `isolate` needs chunks if the drafter fails
        drawing = [chunk for chunk in chunks if chunk.completes]
        drawn = iter(self._compute(chunks, drawing))
        self.scheduler.learn(chunks, time.perf_counter() - began)
        if self.speculation is not None:
            self.speculation.follow(chunks)
        self.scheduler.mark_computed(chunks)
        for chunk in drawing:
            self._append(chunk, list(itertools.islice(drawn, len(chunk.drafts) + 1)))
        self._step_s = time.perf_counter() - began
        return self._events

    def isolate(self, cause: Exception) -> list[TokenEvent]:
        if not self.chunks or not self._repeats_steps:
            raise cause  # not a request's fault but the scheduler's; or others are still in the middle of the step
        if self.device.type == "cuda":
            # After an assertion or an illegal access on the device, every later call in this process fails. This call
            # then raises too; errors of a request or lack of memory do not have this effect.
            torch.cuda.synchronize(self.device)
        if isinstance(cause, torch.OutOfMemoryError):
            culprit = self._relieve(cause)
        elif (culprit := self.scheduler.isolate(self.chunks)) is None:
            log.warning("a step of %d sequences failed (%s): repeating it one by one", len(self.chunks), cause)
        if culprit is None:
            return self._events
        self._end(culprit)
        return [*self._events, error_event(culprit.id, cause)]

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and not self._compiling

    @property
    def stats(self) -> EngineStats:
        scheduler, speculation = self.scheduler, self.speculation
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._compiling),
            kv_blocks_used=scheduler.blocks.used,
            kv_blocks_total=scheduler.blocks.total,
            preemptions=scheduler.preemptions,
            step_s=self._step_s,
            draft_tokens=0 if speculation is None else speculation.proposed,
            accepted_draft_tokens=0 if speculation is None else speculation.accepted,
            step_sequences=len(self.chunks) if self._step_s else 0,
        )

    @property
    def pause_s(self) -> float:
        reads = not self.chunks and self._adapters is not None and self._adapters.table.reading
        return _READ_WAIT_S if reads else 0.0

    def add_adapter(self, name: str, version: int, directory: str, options: Mapping[str, str]) -> PendingAdapter:
        if self._adapters is None:
            return super().add_adapter(name, version, directory, options)
        return self._adapters.add(name, version, directory, options)

    def remove_adapter(self, name: str, version: int) -> None:
        if self._adapters is None:
            return super().remove_adapter(name, version)
        self._adapters.table.remove(name, version)

    def metrics(self) -> list[MetricFamily]:
        return [] if self._adapters is None else self._adapters.metrics(self._sequences)

    def close(self) -> None:
        self.grammars.close()
        if self._adapters is not None:
            self._adapters.close()
        if self.speculation is not None:
            self.speculation.close()
        self._close_runner()

    def _relieve(self, cause: torch.OutOfMemoryError) -> Sequence | None:
        """Memory ran out in a step: have fewer sequences in the next. A sequence that was alone in it is returned."""
        traceback.clear_frames(cause.__traceback__)  # they hold the step's results so far
        torch.cuda.empty_cache()
        culprit = self.scheduler.relieve(self.chunks, self._repeatable)
        if culprit is None:
            log.warning(
                "no memory for %d sequences at once: %d until further notice", len(self.chunks), self.scheduler.fitting
            )
        return culprit

    def _possible(self, words: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        """The words that the model can generate: a tokenizer may have more tokens than the model has logits."""
        return tuple(word for word in words if max(word) < self.vocabulary)

    def _admit_compiled(self) -> list[TokenEvent]:
        """Give the scheduler the sequences whose grammars are ready; error events for those whose grammars failed."""
        if self._compiling and self.scheduler.idle:
            wait(self._compiling.values(), _COMPILE_WAIT_S, FIRST_COMPLETED)
        refused = []
        for request_id, future in [(i, f) for i, f in self._compiling.items() if f.done()]:
            sequence = self._sequences[request_id]
            error = future.exception()
            if error is None:
                del self._compiling[request_id]
                sequence.matcher = Matcher(future.result())
                self.scheduler.add(sequence)
            else:
                self._end(sequence)
                refused.append(error_event(request_id, error))
        return refused

    def _refuse_without_adapter(self) -> list[TokenEvent]:
        """Error events for the sequences that wait for an adapter which can't be had."""
        refused = []
        for number, error in ({} if self._adapters is None else self._adapters.failures()).items():
            for sequence in [one for one in self._sequences.values() if one.adapter_number == number]:
                if not sequence.adapter_slot:
                    self._end(sequence)
                    refused.append(error_event(sequence.id, error))
        return refused

    def _compute(self, chunks: list[SequenceChunk], drawing: list[SequenceChunk]) -> list[Sampled]:
        """Compute the chunks' tokens, and draw after the last position of those in `drawing`, and after each draft."""
        sequences = [chunk.sequence for chunk in drawing for _ in range(len(chunk.drafts) + 1)]
        ahead = [i for chunk in drawing for i in range(len(chunk.drafts) + 1)]
        asked = self.sampler.ask(sequences, ahead)
        computed = sampled_or_logits(self.runner, self._pick, chunks, asked)
        if isinstance(computed, SampledTokens):
            return sampled(computed)
        logits = computed
        # where each chunk's rows end; taken before anything changes what `rows_of` returns
        ends = list(itertools.accumulate(rows_of(chunk) for chunk in chunks))
        self._keep_prompt_entries(chunks, ends, logits)
        after = [(end, len(chunk.drafts)) for chunk, end in zip(chunks, ends, strict=True) if chunk.completes]
        rows = [row for end, drafts in after for row in range(end - 1 - drafts, end)]
        if len(logits) != len(rows):
            logits = logits.index_select(0, indices(rows, logits.device))
        with torch.inference_mode():
            return self.sampler.sample(logits, sequences, asked) if sequences else []

    def _speculate(self, chunks: list[SequenceChunk]) -> list[SequenceChunk]:
        """Add draft tokens to the chunks."""
        if self.speculation is None:
            return chunks
        return self.speculation.add_drafts(chunks, self.scheduler.reserve)

    def _append(self, chunk: SequenceChunk, sampled: list[Sampled]) -> None:
        """Append the token drawn after the chunk, and the one after each of its drafts until a draft is wrong."""
        sequence = chunk.sequence
        for right, (drawn, draft) in enumerate(itertools.zip_longest(sampled, chunk.drafts)):
            try:
                event = sequence.append(drawn.token_id, drawn.logprob, drawn.top, self._eos_ids, self.max_model_len)
            except GenerationError as exc:
                event = error_event(sequence.id, exc)
            self._events.append(event)
            if event.finish is not None or event.error is not None:
                self._end(sequence)
                return
            if drawn.token_id != draft:  # at the latest after the last draft, where `draft` is None
                if self.speculation is not None and chunk.drafts:
                    self.speculation.learn(chunk, right)
                return
            sequence.computed += 1  # the draft was this token: its keys and values are in the cache

    def _keep_prompt_entries(self, chunks: list[SequenceChunk], ends: list[int], logits: Tensor) -> None:
        """Keep the log-probabilities of the prompt tokens that follow the positions of this step."""
        for chunk, end in zip(chunks, ends, strict=True):
            sequence = chunk.sequence
            if not sequence.wants_prompt_logprobs:
                continue
            following = sequence.computed + 1  # the prompt position that this chunk's first row predicts
            # A preempted sequence is computed again: skip the entries that it has.
            first = max(following, len(sequence.prompt_entries))
            last = min(following + chunk.length, sequence.prompt_length)
            if first < last:
                start = end - chunk.length - following
                rows, ids = logits[start + first : start + last], sequence.tokens[first:last]
                alternatives = sequence.sampling.prompt_logprobs or 0
                sequence.prompt_entries += prompt_entries(self._row_sampler, rows, ids, alternatives)
                sequence.prompt_ranks += ranks_of(rows, ids)

    def _end(self, sequence: Sequence) -> None:
        del self._sequences[sequence.id]
        compiling = self._compiling.pop(sequence.id, None)
        if compiling is None:
            self.scheduler.remove(sequence)
        elif sequence.sampling.grammar is not None:
            self.grammars.leave(sequence.sampling.grammar, compiling)
        if self._adapters is not None:
            self._adapters.end(sequence)
        self.runner.forget(sequence)
        self.sampler.forget(sequence)
        if self.speculation is not None:
            self.speculation.forget(sequence)
