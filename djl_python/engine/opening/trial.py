"""The text that a model is tried on when it is opened, and how far other logits are from its own. Engine process, once.

Logits are compared as the distributions of the next token that they stand for, at every position of the text. How far
apart two may be depends on the model: one with random weights hardly prefers any token, and every mistake seems small.
So distances are relative to how far the model's own distributions at different positions are from one another: what
has little to do with the model is at a distance of about 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ...core.types import SamplingParams
from ..batch.chunk import Chunk
from ..batch.sequence import Sequence
from ..checkpoints.loading import LoadedModel
from ..checkpoints.quantization import Quantize
from ..checkpoints.rope import original_length
from ..torch_backend.model_runner import ModelRunner

#: Most tokens of the text.
LONGEST: Final = 72
_MANY: Final = 1 << 20  # logits
_OTHERS: Final = 1024  # tokens, beside those of the text, that a model with a small vocabulary is left
# Tokens of the small pieces that a runner reads after the first, so that all are near where one begins, ...
_SMALL: Final = (6, 6, 6)
# ... and of those at the end, one by one, as it will read what it generates.
_SINGLY: Final = (1, 1, 1)


@dataclass(frozen=True)
class Trial:
    """A text.

    Attributes:
        ids: its tokens.
        rows: token ids, those of the text among them, to which the vocabulary of a copy of the model is narrowed.
        places: (tokens,) the index of each of the text's tokens in `rows`.
    """

    ids: list[int]
    rows: Tensor
    places: Tensor

    @classmethod
    def of(cls, ids: list[int], vocabulary: int) -> Trial:
        own = torch.tensor(sorted(set(ids)))
        others = torch.linspace(0, vocabulary - 1, min(_OTHERS, vocabulary)).long()
        rows = torch.unique(torch.cat([own, others]))
        return cls(ids, rows, torch.searchsorted(rows, torch.tensor(ids)))


def tolerance(loaded: LoadedModel, quantize: Quantize | None) -> float:
    """How much logits may differ if computed in another way, relative to the greatest of them."""
    return 1e-3 if loaded.dtype == torch.float32 and quantize is None else 0.1


def trial_ids(loaded: LoadedModel, text: list[int]) -> list[int]:
    """The text's ids, if the model has all of them; else made-up ones, the same at every start.

    Args:
        text: ids of a text by the model's own tokenizer; empty where there is none.
    """
    turns = [original_length(module) for module in loaded.model.modules()]
    most = min(LONGEST, loaded.context, *(length for length in turns if length))  # longer texts turn otherwise
    if text and max(text) < loaded.vocabulary:
        return text[:most]
    return [(7 * i + 3) % loaded.vocabulary for i in range(most)]


def _pieces(tokens: int) -> list[int]:
    """How many tokens of a text are read at once: most of it, then small pieces, the last tokens one by one."""
    small = _SMALL if tokens > 2 * sum(_SMALL) else ()
    return [tokens - sum(small) - sum(_SINGLY), *small, *_SINGLY]


def read_in_pieces(runner: ModelRunner, ids: list[int], block_size: int) -> Tensor:
    """Logits (tokens, vocabulary) fp32 of a runner that reads a text in pieces, into blocks from 1 on."""
    sequence = Sequence(
        0, ids, len(ids), SamplingParams(max_new_tokens=1, prompt_logprobs=0),
        blocks=list(range(1, 1 + -(-len(ids) // block_size))),
    )  # fmt: skip
    made = []
    for length in _pieces(len(ids)):
        made.append(runner.run([Chunk(sequence, length)]).float().clone())
        sequence.computed += length
    runner.forget(sequence)
    return torch.cat(made)


def distance(found: Tensor, expected: Tensor) -> float:
    """How far the logits of a runner that read a text in pieces are from the expected ones.

    That is the median of `distances`, of the first piece, the small ones, or the tokens read one by one, whichever is
    most.
    """
    first, *rest = _pieces(len(found))
    parts = torch.split(distances(found, expected), [first, sum(rest) - sum(_SINGLY), sum(_SINGLY)])
    return max(float(part.median()) for part in parts if len(part))


def distances(found: Tensor, expected: Tensor) -> Tensor:
    """How far logits are from the expected ones at each position, (tokens,); both (tokens, vocabulary) fp32.

    That is the divergence (Kullback and Leibler's) of their distributions, relative to the median of those between the
    expected ones of different positions; infinite where logits are not numbers.
    """
    # Few logits are compared exactly; with a large vocabulary that would take a second.
    dtype = torch.float64 if expected.numel() < _MANY else torch.float32
    wanted = expected.to(dtype).log_softmax(-1)
    chances = wanted.exp()

    def divergence(logits: Tensor) -> Tensor:
        return (chances * (wanted - logits.to(dtype).log_softmax(-1))).sum(-1)

    scale = divergence(expected.roll(1, 0)).median().clamp_min(1e-12)
    return (divergence(found) / scale).nan_to_num(nan=torch.inf).clamp_min(0)
