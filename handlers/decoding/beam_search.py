"""Beam search, by transformers' definition, on top of the engine. Runs in the worker's event loop.

Each step asks the engine for one token after every beam, with enough alternatives to choose the next beams from. The
beams share their common prefixes in the engine's prefix cache.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import msgspec

from djl_python.core.errors import ParameterError
from djl_python.core.types import (
    Branching,
    DecoderTokens,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    TokenEvent,
)
from djl_python.text.stop import StopMatcher
from djl_python.text.tokens.detokenizer import Detokenizer, detokenizer

from ..prepared import Prepared
from .choice import Choice
from .generation import Generation

Alternatives = Sequence[tuple[int, float]]


class BeamText:
    """A beam's text, read as far as needed to see whether a stop sequence ends it.

    It reads a token as the `TextStream` that answers will. A beam and its extensions differ by one token each, which is
    all that an extension reads.

    Args:
        min_new_tokens: stop sequences that are complete before so many tokens do not count.

    Attributes:
        stopped: whether a stop sequence ends it. It must not be extended then.
    """

    def __init__(self, reader: Detokenizer, matcher: StopMatcher, min_new_tokens: int) -> None:
        self.stopped = False
        self._reader = reader
        self._matcher = matcher
        self._uncounted = min_new_tokens

    def extended(self, token_id: int) -> BeamText:
        """The text with one more token."""
        longer = BeamText(self._reader.fork(), self._matcher.fork(), self._uncounted - 1)
        text = longer._reader.push(token_id)
        longer.stopped = longer._matcher.feed(text, honoured=longer._uncounted <= 0) is not None
        return longer


@dataclass(frozen=True)
class Beam:
    """An answer, or the beginning of one.

    `score` is the sum of its tokens' log-probabilities, each multiplied by a repetition penalty; for a finished beam,
    divided by its length to the power of the length penalty. `tokens` are (id, log-probability, alternatives to
    report). `text` is there if stop sequences may end it.
    """

    score: float
    tokens: tuple[tuple[int, float, Alternatives], ...]
    text: BeamText | None = None

    @property
    def ids(self) -> list[int]:
        """The ids of its tokens."""
        return [token_id for token_id, _, _ in self.tokens]


class Beams:
    """The search itself, without an engine.

    Args:
        end_ids: tokens that finish a beam.
        sampling: limits for the length of an answer, its repetition penalty, how many alternatives are reported.
        prompt_ids: the prompt's tokens; the penalty is for them too.
        text: the text before the first token, if there are stop sequences.
        decoder: of an encoder-decoder model.

    Attributes:
        running: the beams to extend, best first.
        finished: the finished beams, at most num_beams, best first.
        done: whether the search is over.
    """

    def __init__(
        self,
        branching: Branching,
        end_ids: AbstractSet[int],
        sampling: SamplingParams,
        prompt_ids: Sequence[int] = (),
        text: BeamText | None = None,
        decoder: DecoderTokens | None = None,
    ) -> None:
        self._forced_length = decoder.forced if decoder is not None else 0
        self._forced_eos = None if decoder is None or sampling.ignore_eos else decoder.forced_eos
        self.running = [Beam(0.0, (), text)]
        self.finished: list[Beam] = []
        self.done = False
        self._branching = branching
        self._end_ids = end_ids
        self._sampling = sampling
        self._penalized = frozenset(prompt_ids if sampling.repetition_penalty != 1 else ())
        self._length = 0
        self._candidates = max(2, 1 + len(end_ids)) * branching.num_beams

    @property
    def alternatives(self) -> int:
        """How many alternatives are needed after each beam in the worst case, with all penalized or barred tokens
        first.
        """
        repeated = len(self._penalized) + self._length if self._sampling.repetition_penalty != 1 else 0
        return self._candidates + repeated + (len(self._end_ids) if self._sampling.min_new_tokens else 0)

    def step(self, alternatives: Sequence[Alternatives]) -> None:
        """Make a step. `alternatives` are, for each running beam, the likeliest next tokens: (id, log-probability)."""
        width, penalty = self._branching.num_beams, self._branching.length_penalty
        barred = self._end_ids if self._length < self._sampling.min_new_tokens else frozenset[int]()
        self._length += 1
        if self._forced_eos is not None and self._length >= self._sampling.max_new_tokens:
            alternatives, barred = [((self._forced_eos, 0.0),)] * len(self.running), frozenset[int]()
        extensions = [
            (beam.score + score, index, token_id, logprob)
            for index, beam in enumerate(self.running)
            for token_id, logprob, score in self._scored(beam, alternatives[index])
            if token_id not in barred
        ]
        extensions.sort(key=lambda extension: (-extension[0], *extension[1:3]))
        shown = [tuple(tops[: self._sampling.top_logprobs]) for tops in alternatives]
        running, finished = [], []
        for rank, (score, index, token_id, logprob) in enumerate(extensions[: self._candidates]):
            before = self.running[index]
            text = None if before.text is None else before.text.extended(token_id)
            beam = Beam(score, (*before.tokens, (token_id, logprob, shown[index])), text)
            if not self._ends(beam):
                running.append(beam)
            elif rank < width:  # lower ranks only keep enough beams running: their ends do not count
                finished.append(Beam(score / self._counted**penalty, beam.tokens))
        self.running = running[:width]
        self.finished = sorted(self.finished + finished, key=lambda beam: -beam.score)[:width]
        self.done = not self.running or (len(self.finished) == width and self._is_decided())

    @property
    def _counted(self) -> int:
        """The length of a beam by transformers' count, by which it divides scores."""
        return self._length + self._forced_length

    def cut(self) -> None:
        """End the search: a running beam competes with the finished ones as if it ended here."""
        running: list[Beam] = []
        if self._length:
            power = self._counted**self._branching.length_penalty
            running = [Beam(beam.score / power, beam.tokens) for beam in self.running]
        self.finished = sorted(self.finished + running, key=lambda beam: -beam.score)[: self._branching.num_beams]
        self.done = True

    def _scored(self, beam: Beam, alternatives: Alternatives) -> Iterator[tuple[int, float, float]]:
        """(id, log-probability, score). As in transformers, the repetition penalty multiplies log-probabilities,
        without normalizing them again.
        """
        penalty = self._sampling.repetition_penalty
        repeated = self._penalized.union(beam.ids) if penalty != 1 else self._penalized
        for token_id, logprob in alternatives:
            yield token_id, logprob, logprob * penalty if token_id in repeated else logprob

    def _ends(self, beam: Beam) -> bool:
        stopped = beam.text is not None and beam.text.stopped
        return stopped or beam.tokens[-1][0] in self._end_ids or self._length >= self._sampling.max_new_tokens

    def _is_decided(self) -> bool:
        """Whether the search may end, now that there are enough finished beams. The best running beam is scored as if
        it ended here: that is transformers' definition, although with a length penalty its score may still rise."""
        best = self.running[0].score / self._counted**self._branching.length_penalty
        return self._branching.early_stopping or best <= self.finished[-1].score


#: The field for beam search: only LMI's requests have one.
_FIELD: Final = "parameters.num_beams"
#: Parameters that change scores inside the engine, where the search does not see it, with their neutral values.
_REFUSED: Final = {
    "do_sample": False,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "grammar": None,
    "bad_words_ids": (),
}


class BeamSearch:
    """The best `n` of `num_beams` beams for one prompt. Nothing is sent before the end: any beam may become the best.

    Raises:
        ParameterError: parameters that do not go with beam search.
    """

    def __init__(self, generation: Generation, prepared: Prepared) -> None:
        request = prepared.request
        self.index, self.sequences = prepared.index, request.branching.num_beams
        _check(request)
        sampling = request.sampling
        self._generation = generation
        self._prepared = prepared
        eos_ids = frozenset() if sampling.ignore_eos else prepared.tokenizer.eos_ids
        self._beams = Beams(
            request.branching,
            eos_ids | frozenset(sampling.stop_token_ids),
            sampling,
            prepared.ids,
            _text_of(prepared),
            prepared.decoder,
        )
        self._alternatives: list[Alternatives] = []
        self._missing = 0
        self._running_ids: list[int] = []
        self._prompt_event = TokenEvent(0, -1)
        self._submitted_s = self._began_s = 0.0
        self._last_s: float | None = None

    def start(self) -> None:
        """Submit the first step."""
        self._submitted_s = time.perf_counter()
        self._submit(self._prepared.request.sampling.prompt_logprobs)

    def cut(self) -> None:
        """Answer with the best beams so far, unless the search is done."""
        if self._beams.done:
            return
        now_s = time.perf_counter()
        for request_id in self._running_ids:
            self._generation.cancel(request_id)
        if self._last_s is None:
            self._began_s = now_s
        self._beams.cut()
        self._answer(now_s)

    def _submit(self, prompt_logprobs: int | None = None) -> None:
        running = self._beams.running
        sampling = SamplingParams(
            max_new_tokens=1,
            ignore_eos=True,
            top_logprobs=self._beams.alternatives,
            prompt_logprobs=prompt_logprobs,
        )
        self._alternatives, self._missing = [()] * len(running), len(running)
        self._running_ids = [
            self._generation.submit(
                self._prepared, self._prepared.ids + beam.ids, sampling, functools.partial(self._receive, index)
            )
            for index, beam in enumerate(running)
        ]

    def _receive(self, index: int, event: TokenEvent) -> None:
        now_s = self._generation.count_token(self._last_s)
        self._alternatives[index] = event.top
        self._missing -= 1
        if self._missing:
            return
        if self._last_s is None:
            self._prompt_event = event
            self._generation.count_cached(event.cached_tokens)
            self._began_s = self._generation.began_s(self._submitted_s, now_s, event)
        self._last_s = now_s
        self._beams.step(self._alternatives)
        if self._beams.done:
            self._answer(now_s)
        else:
            self._submit()

    def _answer(self, now_s: float) -> None:
        request = self._prepared.request
        timings = self._generation.timings(self._submitted_s, self._began_s, now_s)
        best = self._beams.finished[: request.branching.n]
        for index in range(request.branching.n):
            choice = Choice(self._prepared, self._prepared.number + index)
            events = self._events(best[index]) if index < len(best) else []
            for delta in (*map(choice.push, events), choice.cut()):  # a search that was cut may have too few beams
                if delta is None:
                    continue
                if delta.finish is not None:
                    finish = msgspec.structs.replace(delta.finish, timings=timings)
                    self._generation.count_sequence(finish, request.sampling.max_new_tokens)
                    delta = msgspec.structs.replace(delta, finish=finish)
                self._generation.answer.write(delta)
                if delta.finish is not None:
                    break
        self._generation.prompt_ended(self.index)

    def _events(self, beam: Beam) -> list[TokenEvent]:
        """Events as the engine would have sent them for this beam."""
        last = len(beam.tokens) - 1
        return [
            TokenEvent(
                0,
                token_id,
                logprob=logprob,
                finish=self._reason(token_id) if position == last else None,
                top=tuple(top),
                prompt=() if position else self._prompt_event.prompt,
                cached_tokens=None if position else self._prompt_event.cached_tokens,
                prompt_ranks=() if position else self._prompt_event.prompt_ranks,
            )
            for position, (token_id, logprob, top) in enumerate(beam.tokens)
        ]

    def _reason(self, token_id: int) -> FinishReason:
        """Why a beam ended with this token; stop sequences are found later, when the ids become text."""
        sampling = self._prepared.request.sampling
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP
        ends = token_id in self._prepared.tokenizer.eos_ids and not sampling.ignore_eos
        return FinishReason.EOS if ends else FinishReason.LENGTH


def _text_of(prepared: Prepared) -> BeamText | None:
    """The text after a prompt, for beams that stop sequences may end."""
    if prepared.stops is None:
        return None
    reader = detokenizer(prepared.tokenizer, prepared.ids, prepared.request.text)
    return BeamText(reader, StopMatcher(prepared.stops), prepared.request.sampling.min_new_tokens)


def _check(request: GenerateRequest) -> None:
    branching = request.branching
    for name, neutral in _REFUSED.items():
        if getattr(request.sampling, name) != neutral:
            shown = {"bad_words_ids": "bad_sequences"}.get(name, name)
            raise ParameterError(f"{_FIELD}: beam search does not go with {shown}", _FIELD)
    if request.sampling.repetition_penalty < 1:
        # A token that ranks behind all alternatives would come to the front.
        raise ParameterError(f"{_FIELD}: beam search does not go with a repetition_penalty below 1", _FIELD)
    if branching.n > branching.num_beams:
        raise ParameterError(
            f"{_FIELD}: {branching.num_beams}, expected at least n ({branching.n}): there are no more sequences", _FIELD
        )
