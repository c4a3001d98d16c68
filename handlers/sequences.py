"""From prompts to an answer: sequences are sampled, ranked and numbered. Runs in the worker's event loop."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from djl_python.core.errors import ParameterError
from djl_python.core.types import DRAWN_SEED_BITS, MAX_SEED, Delta, Finish, GenerateRequest, Grammar, Token, TokenEvent

from .beam_search import BeamSearch
from .choice import Choice
from .generation import Generation
from .preparation import Prepared

_SEED_SHIFT: Final = 64 - DRAWN_SEED_BITS


async def generate(generation: Generation, prompts: Sequence[Prepared]) -> None:
    """Generate until the end, a failure, or the cancellation of this task. Leaves nothing in the engine.

    Raises:
        ParameterError: parameters contradict each other.
        ServingError: the engine failed.
    """
    try:
        number = 0
        for prepared in prompts:
            branching = prepared.request.branching
            job = BeamSearch if branching.num_beams > 1 else SampledSequences
            job(generation, prepared, number).start()
            number += branching.n
        await generation.answer.wait()
    finally:
        generation.release()


class SampledSequences:
    """The sequences of one prompt, drawn independently of each other: `n`, or the best `n` of `best_of`.

    They are numbered best first, by the mean of their log-probabilities; in a stream, in the order of drawing.

    Args:
        number: the first sequence's number in the answer.

    Raises:
        ParameterError: the best of several sequences are to be streamed.
    """

    def __init__(self, generation: Generation, prepared: Prepared, number: int) -> None:
        branching = prepared.request.branching
        self._generation = generation
        self._number = number
        self._wanted, self._drawn = branching.n, max(branching.n, branching.best_of)
        if self._drawn > self._wanted and generation.answer.streams:
            raise ParameterError("best_of: sequences can't be streamed before the best is known", "best_of")
        self._kept: list[list[Delta]] | None = None
        if self._drawn > 1 and not generation.answer.streams:
            self._kept = [[] for _ in range(self._drawn)]
        self._open = self._drawn
        if self._kept is None and not generation.answer.shows_logprobs:
            sampling = msgspec.structs.replace(prepared.request.sampling, logprobs=False, top_logprobs=0)
            request = msgspec.structs.replace(prepared.request, sampling=sampling)
            prepared = dataclasses.replace(prepared, request=request)
        self._prepared = prepared

    def start(self) -> None:
        """Submit the first sequence; its siblings follow when they can share the prompt in the engine's cache."""
        request = self._prepared.request
        if self._drawn == 1:
            _SampledSequence(self._generation, self._prepared, request, self._number, self._generation.answer.write)
        else:
            _SampledSequence(
                self._generation, self._prepared, request, self._number, self._deliver(0), self._start_siblings
            )

    def _start_siblings(self, prefill: tuple[Token, ...]) -> None:
        request = self._prepared.request
        for index in range(1, self._drawn):
            sampling = msgspec.structs.replace(
                request.sampling, seed=sibling_seed(request.sampling.seed, index), prompt_logprobs=None
            )
            sibling = msgspec.structs.replace(request, sampling=sampling)
            _SampledSequence(
                self._generation, self._prepared, sibling, self._number + index, self._deliver(index), prefill=prefill
            )

    def _deliver(self, index: int) -> Callable[[Delta], None]:
        return self._generation.answer.write if self._kept is None else functools.partial(self._keep, self._kept[index])

    def _keep(self, deltas: list[Delta], delta: Delta) -> None:
        deltas.append(delta)
        if delta.finish is not None:
            self._open -= 1
            if not self._open:
                self._rank()

    def _rank(self) -> None:
        assert self._kept is not None
        best = sorted(self._kept, key=lambda deltas: _mean_logprob(deltas[-1].finish), reverse=True)
        for number, deltas in enumerate(best[: self._wanted], self._number):
            for delta in deltas:
                self._generation.answer.write(msgspec.structs.replace(delta, choice=number))


class _SampledSequence:
    """One sequence of a `SampledSequences`. Submits itself.

    If tools may be called and an answer has a form (`Prepared.answer_form`), generation begins without the form. As
    soon as the model calls a tool, its output counts; as soon as it writes other text, generation restarts in the form,
    with the same seed: reasoning before it comes out once more.

    Args:
        began: called with the prompt's tokens at the first event.
        prefill: the prompt's tokens, if a sibling has them already.
    """

    def __init__(
        self,
        generation: Generation,
        prepared: Prepared,
        request: GenerateRequest,
        number: int,
        deliver: Callable[[Delta], None],
        began: Callable[[tuple[Token, ...]], None] | None = None,
        prefill: tuple[Token, ...] = (),
    ) -> None:
        self._generation = generation
        self._prepared = prepared
        self._request = request
        self._choice = Choice(prepared, number, request, prefill)
        self._number = number
        self._form = prepared.answer_form  # None: there is none, or it is decided whether a tool is called
        self._undecided: list[Delta] = []
        self._deliver = deliver
        self._began = began
        self._max_new_tokens = request.sampling.max_new_tokens
        self._last_s: float | None = None
        self._began_s = 0.0
        self._submitted_s = time.perf_counter()
        self._id = generation.submit(prepared, prepared.ids, request.sampling, self._receive)

    def _receive(self, event: TokenEvent) -> None:
        now_s = self._generation.count_token(self._last_s)
        if self._last_s is None:
            self._began_s = self._generation.began_s(self._submitted_s, now_s, event)
        self._last_s = now_s
        delta = self._choice.push(event)
        if self._began is not None:
            began, self._began = self._began, None
            began(self._choice.prefill)
        if delta is None or (self._form is not None and not self._decides(delta, self._form)):
            return
        if delta.finish is not None:
            if event.finish is None:  # a stop sequence matched, and the engine does not know them
                self._generation.cancel(self._id)
            timings = self._generation.timings(self._submitted_s, self._began_s, now_s)
            finish = msgspec.structs.replace(delta.finish, timings=timings)
            self._generation.count_sequence(finish, self._max_new_tokens)
            delta = msgspec.structs.replace(delta, finish=finish)
        for earlier in self._undecided:
            self._deliver(earlier)
        self._undecided.clear()
        self._deliver(delta)

    def _decides(self, delta: Delta, form: Grammar) -> bool:
        """Whether this delta and the undecided ones before it are now part of the answer."""
        if delta.tool_calls or (delta.finish is not None and self._choice.reasons):
            self._form = None
            return True
        if delta.text.strip() or delta.finish is not None:
            self._begin_again(form)
        else:
            self._undecided.append(delta)
        return False

    def _begin_again(self, form: Grammar) -> None:
        self._generation.cancel(self._id)
        self._form = None
        self._undecided.clear()
        sampling = msgspec.structs.replace(self._request.sampling, grammar=form)
        prepared = dataclasses.replace(self._prepared, new_parser=None)
        self._choice = Choice(prepared, self._number, self._request)
        self._id = self._generation.submit(self._prepared, self._prepared.ids, sampling, self._receive)


def sibling_seed(seed: int, index: int) -> int:
    """The seed of the `index`-th sequence of a request: reproducible, and unlike its neighbours' (SplitMix64)."""
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & MAX_SEED
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MAX_SEED
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MAX_SEED
    return (z ^ (z >> 31)) >> _SEED_SHIFT


def _mean_logprob(finish: Finish | None) -> float:
    assert finish is not None
    return finish.cumulative_logprob / finish.generated_tokens
