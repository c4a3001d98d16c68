"""Requests to a question answering model: the spans of a context that answer a question.

Runs in the worker. A long context is read in pieces that overlap, as transformers' pipeline has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from djl_python.core import budgets
from djl_python.core.errors import ParameterError, TextLengthError
from djl_python.core.text_tasks import ExtractRequest, Granularity, Span, Spans
from djl_python.text.tokens.sequences import TokenSequence, fewest_tokens, sequence_of

from .checkpoint import EncoderCheckpoint
from .texts import ReadText, Texts
from .work import Numbers, Planner, Work, softmax

#: Tokens of a piece with its question, as in transformers; models were trained so.
_PIECE: Final = 384
_NEVER: Final = -1e4


def extract(texts: Texts, checkpoint: EncoderCheckpoint, request: ExtractRequest) -> Work:
    """The parts of a context that answer a question, the best first."""
    question, context = request.text.text, request.text.pair
    if not question or not context:
        raise ParameterError("expected a question and a context", request.text.field)
    most = min(texts.limit, _PIECE)
    if fewest_tokens(texts.tokenizer, [question, context], budgets.PIECES.most * most) > budgets.PIECES.most * most:
        raise _too_long(request, budgets.PIECES.most + 1)
    whole = sequence_of(texts.tokenizer, question, context)
    pieces = list(_pieces(whole, most, request))

    def finish(outputs: Sequence[Numbers]) -> Spans:
        spans_by_score: list[tuple[float, TokenSequence, int, int]] = []
        nothing = 1.0
        for piece, logits in zip(pieces, outputs, strict=True):
            answers, none = _answers(piece, logits, request)
            spans_by_score += ((score, piece, first, last) for score, first, last in answers)
            nothing = min(nothing, none)
        spans_by_score.sort(key=lambda answer: -answer[0])
        spans = [_span(*answer, context, request) for answer in spans_by_score[: request.top]]
        if request.may_have_none:
            spans.append(Span(text="", score=nothing, start=0, end=0))
            spans = sorted(spans, key=lambda span: -span.score)[: request.top]
        return Spans(spans=tuple(spans), tokens=sum(map(len, pieces)))

    inputs = (ReadText(piece, question, context).input(Granularity.TOKENS) for piece in pieces)
    return Work(tuple(inputs), finish)


def _pieces(whole: TokenSequence, most: int, request: ExtractRequest) -> Iterator[TokenSequence]:
    """The question with each piece of the context.

    Raises:
        TextLengthError: the question leaves no room.
        ParameterError: there are too many pieces.
    """
    of_context = whole.places(1)
    room = most - (len(whole) - len(of_context))
    if room < 1:
        raise TextLengthError(len(whole) - len(of_context), most - 1, request.text.field)
    step = room - min(request.stride, room // 2)
    if (count := 1 + -(-max(0, len(of_context) - room) // step)) > budgets.PIECES.most:
        raise _too_long(request, count)
    others = [at for at, text in enumerate(whole.texts) if text != 1]
    for first in range(0, max(1, len(of_context)), step):
        yield whole.part(sorted([*others, *of_context[first : first + room]]))
        if first + room >= len(of_context):
            return


def _too_long(request: ExtractRequest, pieces: int) -> ParameterError:
    field = request.text.field
    excess = budgets.PIECES.excess(pieces, at_least=True)
    return ParameterError(f"{field}: the context: {excess}, each with the question", field)


def _answers(
    piece: TokenSequence, logits: Numbers, request: ExtractRequest
) -> tuple[list[tuple[float, int, int]], float]:
    """(score, first token, last token) of a piece's best spans; and the score of no answer, the first token's."""
    of_context = np.array([text == 1 for text in piece.texts])
    allowed = of_context.copy()
    allowed[0] = True
    starts, ends = (softmax(np.where(allowed, logits[:, side], np.float32(_NEVER))) for side in (0, 1))
    nothing = float(starts[0] * ends[0])
    starts[0] = ends[0] = 0
    # A row for each first token; its columns are the last tokens from there on.
    width = min(request.max_answer_tokens, len(piece))
    last = np.lib.stride_tricks.sliding_window_view(np.pad(ends, (0, width - 1)), width)
    scores = (starts[:, None] * last).ravel()
    if request.top < len(scores):
        scores[scores < np.partition(scores, -request.top)[-request.top]] = -1  # which sorts fewer of them
    places = np.flatnonzero(scores >= 0)
    answers = []
    for place in places[np.argsort(-scores[places], kind="stable")[: request.top]].tolist():
        first, more = divmod(place, width)
        if first + more < len(piece) and of_context[first] and of_context[first + more]:
            answers.append((float(scores[place]), first, first + more))
    return answers, nothing


def _span(score: float, piece: TokenSequence, first: int, last: int, context: str, request: ExtractRequest) -> Span:
    if request.align_to_words:
        first, last = _word(piece, first)[0], _word(piece, last)[-1]
    start, end = piece.spans[first][0], piece.spans[last][1]
    return Span(text=context[start:end], score=score, start=start, end=end)


def _word(piece: TokenSequence, at: int) -> list[int]:
    """The places of the context's tokens that are of the same word as this one, as far as they are in the piece."""
    word = piece.words[at]
    if word is None:
        return [at]
    return [place for place, other in enumerate(piece.words) if other == word and piece.texts[place] == 1]


#: By type of the request.
SPANS: Final[Mapping[type, Planner]] = {ExtractRequest: extract}
