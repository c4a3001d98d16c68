"""Requests to a masked language model: tokens for masks. Runs in the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from djl_python.core.errors import ParameterError
from djl_python.core.text_tasks import Filling, Fillings, FillRequest, Granularity
from djl_python.text.tokens.tokenizer import Tokenizer

from .checkpoint import EncoderCheckpoint
from .texts import ReadText, Texts
from .work import Numbers, Planner, Work, softmax


def fill(texts: Texts, checkpoint: EncoderCheckpoint, request: FillRequest) -> Work:
    """The best tokens for each mask of a text."""
    tokenizer = texts.tokenizer
    mask = tokenizer.special_tokens.get("mask_token", "")
    mask_id = tokenizer.token_to_id(mask)
    read = texts.read(request.text)
    positions = [at for at, token_id in enumerate(read.sequence.ids) if token_id == mask_id]
    if not positions:
        raise ParameterError(f"{request.text.field}: expected a text with {mask or 'a mask'}", request.text.field)
    targets = _targets(tokenizer, request.targets)

    def finish(outputs: Sequence[Numbers]) -> Fillings:
        masks = [
            tuple(_filling(tokenizer, read, positions, at, *best) for best in _best(row, targets, request.top))
            for at, row in zip(positions, softmax(outputs[0]), strict=True)
        ]
        return Fillings(masks=tuple(masks), tokens=len(read.sequence))

    most = len(targets) or tokenizer.vocab_size
    return Work((read.input(Granularity.TOKENS, positions),), finish, fillings=len(positions) * min(request.top, most))


def _targets(tokenizer: Tokenizer, targets: Sequence[str]) -> list[int]:
    """The ids of words that may be filled in; a word of several tokens gets its first one."""
    target_ids: dict[int, None] = {}
    for target in targets:
        token_id = tokenizer.token_to_id(target)
        ids = [token_id] if token_id is not None else tokenizer.encode(target, add_special_tokens=False)[:1]
        if not ids:
            raise ParameterError(f"targets: expected words that have tokens, got {target!r}", "targets")
        target_ids[ids[0]] = None
    return list(target_ids)


def _best(scores: Numbers, targets: Sequence[int], top: int) -> list[tuple[int, float]]:
    """(token id, score) of the best tokens."""
    ids = np.array(targets) if targets else np.arange(len(scores))
    order = np.argsort(-scores[ids], kind="stable")[:top]
    return [(int(token_id), float(scores[token_id])) for token_id in ids[order]]


def _filling(
    tokenizer: Tokenizer, read: ReadText, masks: Sequence[int], at: int, token_id: int, score: float
) -> Filling:
    ids = list(read.sequence.ids)
    ids[at] = token_id
    return Filling(
        score=score,
        token=token_id,
        token_text=tokenizer.decode([token_id], skip_special_tokens=False),
        sequence=tokenizer.decode(ids, skip_special_tokens=len(masks) == 1),
    )


#: By type of the request.
MASKS: Final[Mapping[type, Planner]] = {FillRequest: fill}
