"""Samples, ranks and numbers the sequences of an answer. Runs in the worker's event loop."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from djl_python.core.errors import ParameterError
from djl_python.core.types import Delta, Finish, FinishReason, Grammar, TokenEvent
from djl_python.text.stream import PromptRead

from ..prepared import Prepared
from .beam_search import BeamSearch
from .choice import Choice
from .deadline import Deadline
from .generation import Generation
from .seeds import sibling_seed
from .thought import Thought


async def generate(generation: Generation, prompts: Sequence[Prepared], deadline: Deadline | None = None) -> None:
    """Generate until the end, a failure, or the cancellation of this task. Leaves nothing in the engine.

    Args:
        deadline: when every sequence ends with the text so far, and the reason `length`.

    Raises:
        ParameterError: parameters contradict each other.
        PredictTimeoutError: the deadline passed before the first token.
        ServingError: the engine failed.
    """
    jobs = [
        (BeamSearch if prepared.request.branching.num_beams > 1 else SampledSequences)(generation, prepared)
        for prepared in prompts
    ]
    await generation.run(jobs, deadline)


class SampledSequences:
    """The sequences of one prompt, drawn independently of each other: `n`, or the best `n` of `best_of`.

    Where they are ranked, or are the best of more, the likeliest is the first, by the mean of its log-probabilities;
    otherwise they are numbered in the order of drawing.

    Raises:
        ParameterError: the best of several sequences are to be streamed.
    """

    def __init__(self, generation: Generation, prepared: Prepared) -> None:
        branching = prepared.request.branching
        self.index, self.sequences = prepared.index, max(branching.n, branching.best_of)
        self._generation = generation
        self._number = number = prepared.number
        self._wanted, self._drawn = branching.n, max(branching.n, branching.best_of)
        if (self._drawn > self._wanted or (branching.ranked and self._drawn > 1)) and generation.answer.streams:
            raise ParameterError("best_of: sequences can't be streamed before the best is known", "best_of")
        self._kept: list[list[Delta]] | None = None
        if self._drawn > self._wanted or (branching.ranked and self._drawn > 1):
            self._kept = [[] for _ in range(self._drawn)]
        self._open = self._drawn  # sequences that have not ended
        self._started = False
        if self._kept is None and not generation.answer.shows_logprobs:
            prepared = _with_sampling(prepared, logprobs=False, top_logprobs=0)
        self._sequences = [
            _SampledSequence(
                generation, _sibling(prepared, index), number + index, self._deliver(index), self._one_ended
            )
            for index in range(self._drawn)
        ]

    def start(self) -> None:
        """Submit the first sequence; its siblings follow when they can share the prompt in the engine's cache."""
        self._started = True
        first, *siblings = self._sequences

        def start_siblings(prompt_read: PromptRead | None) -> None:
            if prompt_read is not None:
                self._generation.count_cached(prompt_read.cached_tokens)
            for sibling in siblings:
                sibling.submit(prompt_read)

        first.submit(began=start_siblings)

    def cut(self) -> None:
        """End every sequence that has not ended, with its text so far."""
        for sequence in self._sequences:
            sequence.cut(after_a_token=self._started and self._generation.answer.streams)

    def _deliver(self, index: int) -> Callable[[Delta], None]:
        return self._generation.answer.write if self._kept is None else self._kept[index].append

    def _one_ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._rank()
            self._generation.prompt_ended(self.index)

    def _rank(self) -> None:
        if self._kept is None:
            return
        best = sorted(self._kept, key=lambda deltas: _mean_logprob(deltas[-1].finish), reverse=True)
        for number, deltas in enumerate(best[: self._wanted], self._number):
            for delta in deltas:
                self._generation.answer.write(msgspec.structs.replace(delta, choice=number))


class _SampledSequence:
    """One sequence of a `SampledSequences`.

    If tools may be called and an answer has a form (`Prepared.answer_form`), generation begins without the form. As
    soon as the model calls a tool, its output counts; as soon as it writes other text, generation restarts in the form,
    with the same seed: reasoning before it comes out once more.
    """

    def __init__(
        self,
        generation: Generation,
        prepared: Prepared,
        number: int,
        deliver: Callable[[Delta], None],
        ended: Callable[[], None],
    ) -> None:
        self._generation = generation
        self._prepared = prepared
        self._number = number
        self._sampling = prepared.request.sampling
        self._thought = Thought.of(prepared)
        self._form = prepared.answer_form  # None: there is none, or it is decided whether a tool is called
        self._undecided: list[Delta] = []
        self._deliver = deliver
        self._on_end = ended
        self._began: Callable[[PromptRead | None], None] | None = None
        self._last_s: float | None = None
        self._ended = self._cuts = False  # `_cuts`: it ends with its next token
        self._id: int | None = None  # of the engine's sequence, once there is one
        self._choice: Choice
        self._submitted_s: float
        self._began_s: float

    def submit(
        self, prompt_read: PromptRead | None = None, *, began: Callable[[PromptRead | None], None] | None = None
    ) -> None:
        """Have the engine generate the sequence.

        Args:
            prompt_read: the engine's facts about the prompt, from a sibling.
            began: called at the first event, with its facts about the prompt.
        """
        self._began = began
        self._choice = Choice(self._prepared, self._number, prompt_read)
        self._submitted_s = time.perf_counter()
        self._id = self._generation.submit(self._prepared, self._prepared.ids, self._sampling, self._receive)

    def cut(self, *, after_a_token: bool) -> None:
        """End the sequence with its text so far, unless it has ended.

        Args:
            after_a_token: end it with its next token, as the events of some streams need a token each.
        """
        if self._ended:
            return
        if after_a_token:
            self._cuts = True
            return
        now_s = time.perf_counter()
        if self._id is None:
            self._choice, self._submitted_s = Choice(self._prepared, self._number), now_s
        else:
            self._generation.cancel(self._id)
        if self._last_s is None:
            self._began_s = now_s
        self._end(self._choice.cut(), now_s)

    def _receive(self, event: TokenEvent) -> None:
        now_s = self._generation.count_token(self._last_s)
        if self._last_s is None:
            self._began_s = self._generation.began_s(self._submitted_s, now_s, event)
        self._last_s = now_s
        if self._cuts and event.finish is None:
            event = msgspec.structs.replace(event, finish=FinishReason.LENGTH)
            self._generation.cancel(event.request_id)
        thought = self._thought
        self._take(event, now_s)
        if thought is not None and thought is self._thought and not self._ended:  # else the sequence has begun again
            thought.note(event)
            if thought.is_spent(self._choice):
                self._end_thought(thought, now_s)

    def _take(self, event: TokenEvent, now_s: float) -> None:
        """Pass on the text that an event makes certain."""
        delta = self._choice.push(event)
        if self._began is not None:
            began, self._began = self._began, None
            began(self._choice.prompt_read)
        if delta is None or (self._form is not None and not self._decides(delta, self._form)):
            return
        if delta.finish is None:
            self._pass_on(delta)
            return
        if event.finish is None and self._id is not None:  # a stop sequence matched, and the engine does not know them
            self._generation.cancel(self._id)
        self._end(delta, now_s)

    def _end(self, delta: Delta, now_s: float) -> None:
        """Pass the last delta on, with the times of the whole sequence."""
        assert delta.finish is not None
        self._ended = True
        timings = self._generation.timings(self._submitted_s, self._began_s, now_s)
        finish = msgspec.structs.replace(delta.finish, timings=timings)
        self._generation.count_sequence(finish, self._prepared.request.sampling.max_new_tokens)
        self._pass_on(msgspec.structs.replace(delta, finish=finish))
        self._on_end()

    def _pass_on(self, delta: Delta) -> None:
        """Deliver the undecided deltas, and then this one."""
        for earlier in self._undecided:
            self._deliver(earlier)
        self._undecided.clear()
        self._deliver(delta)

    def _end_thought(self, thought: Thought, now_s: float) -> None:
        """Write the closing mark for the model, and let it continue after the mark."""
        assert self._id is not None
        self._generation.cancel(self._id)
        for event in thought.closing_events(self._prepared.request.sampling):
            if not self._ended:
                self._take(event, now_s)
        if not self._ended:
            sampling = thought.sampling_after(self._sampling)
            self._id = self._generation.submit(
                self._prepared, self._prepared.ids + thought.made, sampling, self._receive
            )

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
        assert self._id is not None
        self._generation.cancel(self._id)
        self._form = None
        self._undecided.clear()
        sampling = self._prepared.request.sampling
        self._sampling = msgspec.structs.replace(sampling, grammar=form, prompt_logprobs=None)
        prepared = dataclasses.replace(self._prepared, new_parser=None)
        self._choice = Choice(prepared, self._number, self._choice.prompt_read)
        self._thought = Thought.of(prepared)
        self._id = self._generation.submit(self._prepared, self._prepared.ids, self._sampling, self._receive)


def _sibling(prepared: Prepared, index: int) -> Prepared:
    """The prompt of its `index`-th sequence: with a seed of its own, and log-probabilities of the prompt only once."""
    if index == 0:
        return prepared
    seed = sibling_seed(prepared.request.sampling.seed, index)
    return _with_sampling(prepared, seed=seed, prompt_logprobs=None)


def _with_sampling(prepared: Prepared, **changes: Any) -> Prepared:
    sampling = msgspec.structs.replace(prepared.request.sampling, **changes)
    return dataclasses.replace(prepared, request=msgspec.structs.replace(prepared.request, sampling=sampling))


def _mean_logprob(finish: Finish | None) -> float:
    assert finish is not None
    if not finish.generated_tokens:  # it was cut before its first token
        return -math.inf
    return finish.cumulative_logprob / finish.generated_tokens
