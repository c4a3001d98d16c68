"""Compiles grammars for one model, and caches them. Engine process: the step loop asks, threads of its own work.

A grammar may cost anything to compile, and the engine can't stop llguidance. So each is first tried in a process with
limits (`grammar_trials`), which is killed when its requests have gone. Only a grammar that compiled there is compiled
here, at the same cost; llguidance lets other threads run meanwhile.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from ...core.errors import ParameterError, ServingError
from ...core.types import Grammar, Vocabulary
from .grammar import CompiledGrammar, special_tokens, tokenizer_of
from .grammar_limits import CACHED_BYTES, CACHED_GRAMMARS, TRIALS, TrialLimits
from .grammar_trials import Attempt, Trials

if TYPE_CHECKING:  # imported where it is first needed: most engines never compile a grammar
    from llguidance import LLTokenizer

_TOO_COSTLY: Final = (
    f"grammar is not valid: it takes more than {TRIALS[-1].cpu_s:.0f} s of a processor, or "
    f"{TRIALS[-1].memory_bytes >> 20} MiB, to compile"
)


class _Job:
    """A grammar on its way through the compiler.

    Attributes:
        waiting: sequences that wait for it.
        tried: whether a trial has compiled it within limits.
        memory_bytes: its memory.
        lark: the translation of a GBNF grammar, once it is tried.
    """

    def __init__(self, grammar: Grammar, *, tried: bool = False, memory_bytes: int = 0, lark: str = "") -> None:
        self.grammar = grammar
        self.future: Future[CompiledGrammar] = Future()
        self.attempt = Attempt()
        self.waiting = 0
        self.tried = tried
        self.memory_bytes = memory_bytes
        self.lark = lark

    @property
    def worn(self) -> bool:
        """Whether new sequences should have it compiled again."""
        future = self.future
        if not future.done() or future.cancelled():
            return future.cancelled()
        error = future.exception()
        return future.result().worn if error is None else not isinstance(error, ParameterError)


class GrammarCompiler:
    """Compiles grammars for one model; caches the most recent results, errors too.

    Args:
        rows: rows of the model's embedding, which can be more than the tokenizer has tokens, or fewer.
        eos_ids: tokens that end a text; without any, the tokenizer's own.
    """

    def __init__(self, rows: int, eos_ids: frozenset[int]) -> None:
        self._rows = rows
        self._eos_ids = eos_ids
        self._vocabulary = Vocabulary([], [], [])
        self._trials = Trials(self._vocabulary, rows, eos_ids)
        self._jobs: OrderedDict[Grammar, _Job] = OrderedDict()
        self._queues: Final = [ThreadPoolExecutor(row.at_once, thread_name_prefix="grammar") for row in TRIALS]
        self._making_tokenizer: Final = threading.Lock()

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """The model's tokens; needed before the first grammar."""
        self._vocabulary = vocabulary
        self._trials = Trials(vocabulary, self._rows, self._eos_ids)
        for work in (lambda: self._tokenizer, self._trials.begin):  # both take a second: side by side
            self._queues[0].submit(work)

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Start to compile a grammar for a sequence, or find it in the cache.

        The future raises ParameterError where the grammar is broken or too costly, or the model has no tokenizer for
        it; GenerationError where grammars can't be compiled now.
        """
        job = self._jobs.get(grammar)
        if job is None or job.worn:
            before = job or _Job(grammar)
            job = _Job(grammar, tried=before.tried, memory_bytes=before.memory_bytes, lark=before.lark)
            self._jobs[grammar] = job
            self._queues[0].submit(self._work, job)
            self._forget_oldest()
        self._jobs.move_to_end(grammar)
        job.waiting += 1
        return job.future

    def leave(self, grammar: Grammar, future: Future[CompiledGrammar]) -> None:
        """Note that a sequence no longer waits for its grammar. When no sequence waits, compiling stops.

        Args:
            future: what `compile` returned for the sequence. After a failure, others may wait for a later one.
        """
        job = self._jobs.get(grammar)
        if job is None or job.future is not future or future.done():
            return
        job.waiting -= 1
        if job.waiting <= 0:
            del self._jobs[grammar]
            job.attempt.cancel()
            job.future.cancel()

    def close(self) -> None:
        """Stop compiling."""
        for job in self._jobs.values():
            if not job.future.done():
                job.attempt.cancel()
        for threads in self._queues:
            threads.shutdown(wait=False, cancel_futures=True)
        self._trials.close()

    def _forget_oldest(self) -> None:
        done = [(grammar, job) for grammar, job in self._jobs.items() if job.future.done()]
        excess = len(self._jobs) - CACHED_GRAMMARS
        total = sum(job.memory_bytes for _, job in done)
        for number, (grammar, job) in enumerate(done):
            if number >= excess and total <= CACHED_BYTES:
                break
            del self._jobs[grammar]
            total -= job.memory_bytes

    def _work(self, job: _Job, row: int = 0) -> None:
        """Try a grammar within the limits of a row of `TRIALS`, and compile it; one that needs more goes to the next
        row.
        """
        with _failure_reported(job):
            if job.attempt.cancelled:
                return
            if job.tried or self._fits(job, TRIALS[row]):
                self._finish(job)
            elif row + 1 < len(TRIALS):
                self._queues[row + 1].submit(self._work, job, row + 1)
            else:
                raise ParameterError(_TOO_COSTLY)

    def _fits(self, job: _Job, limits: TrialLimits) -> bool:
        """Whether a grammar is compiled within limits.

        Raises:
            ParameterError: it is broken.
        """
        outcome = self._trials.make(job.attempt, job.grammar, limits)
        if outcome is None:
            return False
        if outcome.error:
            raise ParameterError(outcome.error)
        job.tried, job.memory_bytes, job.lark = True, outcome.memory_bytes, outcome.lark
        return True

    def _finish(self, job: _Job) -> None:
        if not job.attempt.cancelled:
            compiled = CompiledGrammar(self._tokenizer, job.grammar, self._special, job.lark)
            with suppress(InvalidStateError):  # it has just been cancelled
                job.future.set_result(compiled)

    @functools.cached_property
    def _special(self) -> Mapping[str, int]:
        return special_tokens(self._vocabulary, self._rows)

    @functools.cached_property
    def _made_tokenizer(self) -> LLTokenizer:
        return tokenizer_of(self._vocabulary, self._rows, self._eos_ids)

    @property
    def _tokenizer(self) -> LLTokenizer:
        with self._making_tokenizer:
            return self._made_tokenizer


@contextmanager
def _failure_reported(job: _Job) -> Iterator[None]:
    """Give a job's future the exception, without its frames: the cache keeps it, and frames would keep the grammar."""
    try:
        yield
    except ServingError as refusal:
        with suppress(InvalidStateError):
            job.future.set_exception(refusal.with_traceback(None))
    except BaseException as failure:
        with suppress(InvalidStateError):
            job.future.set_exception(failure)
        raise
