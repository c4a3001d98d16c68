"""Requests to a classifier of tokens: a label for each token, or entities of joined tokens.

Runs in the worker. Words and joining are transformers' pipeline's, so that answers are the same.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np

from djl_python.core.text_tasks import Entity, Granularity, TagRequest, Tags
from djl_python.text.tokens.tokenizer import Tokenizer

from .checkpoint import EncoderCheckpoint
from .texts import ReadText, Texts
from .work import Numbers, Planner, Work, softmax


@dataclass(frozen=True)
class _Piece:
    """A token, or a word of several.

    Attributes:
        scores: of each label.
        number: the token's place in the sequence, special tokens included.
        continues: whether the token belongs to the same word as the previous one.
        spelled: the token as the vocabulary has it, or the text of an unknown token; for a word, its tokens joined.
    """

    scores: Numbers
    start: int
    end: int
    number: int | None = None
    continues: bool = False
    spelled: str = ""


def tag(texts: Texts, checkpoint: EncoderCheckpoint, request: TagRequest) -> Work:
    """The entities of a text."""
    read = texts.read(request.text)
    positions = read.sequence.places(0)
    words = _Words(texts.tokenizer)

    def finish(outputs: Sequence[Numbers]) -> Tags:
        pieces = words.pieces(read, positions, softmax(outputs[0]))
        if request.aggregation == "none":
            entities = [_of_token(piece, checkpoint) for piece in pieces]
        else:
            if request.aggregation != "simple":
                pieces = [words.word(group, request.aggregation) for group in _by_word(pieces)]
            entities = [words.entity(group, checkpoint) for group in _by_label(pieces, checkpoint)]
        kept = tuple(
            msgspec.structs.replace(entity, start=read.start + entity.start, end=read.start + entity.end)
            for entity in entities
            if entity.label not in request.ignored
        )
        return Tags(entities=kept, tokens=len(read.sequence))

    return Work((read.input(Granularity.TOKENS, positions),), finish)


class _Words:
    """How a tokenizer marks words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._marks_parts = _marks_parts(tokenizer)
        self._unknown = tokenizer.token_to_id(tokenizer.special_tokens.get("unk_token", ""))

    def pieces(self, read: ReadText, positions: Sequence[int], scores: Numbers) -> list[_Piece]:
        """The tokens of the text, with their labels' scores."""
        pieces = []
        for at, own in zip(positions, scores, strict=True):
            token_id, (start, end) = read.sequence.ids[at], read.sequence.spans[at]
            spelled, text = self._tokenizer.id_to_token(token_id) or "", read.text[start:end]
            if token_id == self._unknown:
                continues, spelled = False, text
            elif self._marks_parts:
                continues = len(spelled) != len(text)
            else:  # the text has no space before it
                continues = start > 0 and " " not in read.text[start - 1 : start + 1]
            pieces.append(_Piece(own, start, end, at, continues, spelled))
        return pieces

    def word(self, group: Sequence[_Piece], strategy: str) -> _Piece:
        """The tokens of a word as one piece; its scores are one token's, or the mean."""
        if strategy == "first":
            scores = group[0].scores
        elif strategy == "max":
            scores = max(group, key=lambda piece: float(piece.scores.max())).scores
        else:
            scores = np.mean([piece.scores for piece in group], axis=0)
        spelled = self._tokenizer.join([piece.spelled for piece in group])
        return replace(group[0], scores=scores, end=group[-1].end, number=None, spelled=spelled)

    def entity(self, pieces: Sequence[_Piece], checkpoint: EncoderCheckpoint) -> Entity:
        """Pieces with the same label as one entity."""
        return Entity(
            label=_kind(checkpoint.labels[int(pieces[0].scores.argmax())])[1],
            score=float(np.mean([piece.scores.max() for piece in pieces])),
            word=self._tokenizer.join([piece.spelled for piece in pieces]),
            start=pieces[0].start,
            end=pieces[-1].end,
        )


@functools.lru_cache(16)
def _marks_parts(tokenizer: Tokenizer) -> bool:
    """Whether tokens that continue a word have a prefix, as WordPiece's ##."""
    definition: dict[str, Any] = json.loads(tokenizer.definition or "{}")
    return bool(definition.get("model", {}).get("continuing_subword_prefix"))


def _of_token(piece: _Piece, checkpoint: EncoderCheckpoint) -> Entity:
    best = int(piece.scores.argmax())
    return Entity(
        label=checkpoint.labels[best],
        score=float(piece.scores[best]),
        word=piece.spelled,
        start=piece.start,
        end=piece.end,
        index=piece.number,
    )


def _by_word(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    group: list[_Piece] = []
    for piece in pieces:
        if group and not piece.continues:
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def _by_label(pieces: Sequence[_Piece], checkpoint: EncoderCheckpoint) -> Iterator[list[_Piece]]:
    """Neighbours with the same label; one that begins an entity (B-) begins a group."""
    group: list[_Piece] = []
    before = ""
    for piece in pieces:
        begins, label = _kind(checkpoint.labels[int(piece.scores.argmax())])
        if group and (begins or label != before):
            yield group
            group = []
        group.append(piece)
        before = label
    if group:
        yield group


def _kind(label: str) -> tuple[bool, str]:
    """(whether a label begins an entity, the label without B- or I-)"""
    return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label


#: By type of the request.
TAGS: Final[Mapping[type, Planner]] = {TagRequest: tag}
