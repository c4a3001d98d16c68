"""The probe: the text on which a model is tried when it is opened, and the distance of other logits from its own.
Engine process, once.

Logits are compared as the distributions of the next token that they stand for, at every position of the text. How far
apart two may be depends on the model: one with random weights hardly prefers any token, and every mistake seems small.
So distances are relative to the distances between the model's own distributions at different positions: unrelated
logits are at a distance of about 1.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ...core.sequence_request import SequenceRequest
from ...core.types import SamplingParams
from ..batch.chunk import SequenceChunk
from ..batch.sequence import Sequence
from ..checkpoints.loading import LoadedModel
from ..checkpoints.rope import original_length
from ..checkpoints.rounding import Quantize
from ..devices.transfers import indices
from .model_runner import ModelRunner

#: Most tokens of the text.
LONGEST: Final = 72
_MANY: Final = 1 << 20  # logits
_OTHERS: Final = 1024  # other tokens in the narrowed vocabulary of the copy
# Tokens of the small pieces that a runner reads after the first, so that all are near where one begins, ...
_SMALL: Final = (6, 6, 6)
# ... and of those at the end, one by one, as it will read what it generates.
_SINGLY: Final = (1, 1, 1)


@dataclass(frozen=True)
class Probe:
    """A text.

    Attributes:
        ids: its tokens.
        encoder_ids: what an encoder reads before; empty for a model that is a decoder alone.
        rows: token ids, those of the text among them, to which the vocabulary of a copy of the model is narrowed.
        places: (tokens,) the index of each of the text's tokens in `rows`.
    """

    ids: list[int]
    rows: Tensor
    places: Tensor
    encoder_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, ids: list[int], vocabulary: int, *, encoded: bool = False) -> Probe:
        """The probe of a text.

        Args:
            encoded: an encoder reads the same text before.
        """
        own = torch.tensor(sorted(set(ids)))
        others = torch.linspace(0, vocabulary - 1, min(_OTHERS, vocabulary)).long()
        rows = torch.unique(torch.cat([own, others]))
        places = torch.searchsorted(rows, torch.tensor(ids))
        return cls(ids, rows, places, tuple(ids) if encoded else ())


def tolerance(loaded: LoadedModel, quantize: Quantize | None) -> float:
    """How much logits may differ if computed in another way, relative to the greatest of them."""
    return 1e-3 if loaded.dtype == torch.float32 and quantize is None else 0.1


def ids_of_probe(loaded: LoadedModel, text: list[int]) -> list[int]:
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


@torch.inference_mode()
def logits_of(model: Any, probe: Probe, device: torch.device) -> Tensor:
    """fp32 logits (tokens, vocabulary) of the text, by a model's own code.

    Args:
        device: where the model takes its inputs; an offloaded model does not know it itself.
    """

    def tensor(ids: Sized) -> Tensor:
        return indices([ids], device)

    if probe.encoder_ids:
        inputs = {"input_ids": tensor(probe.encoder_ids), "decoder_input_ids": tensor(probe.ids)}
    else:
        inputs = {"input_ids": tensor(probe.ids)}
    logits: Tensor = model(**inputs, use_cache=False).logits[0].float()
    return logits


def read_in_pieces(runner: ModelRunner, ids: list[int], block_size: int, encoder_ids: tuple[int, ...] = ()) -> Tensor:
    """Logits (tokens, vocabulary) fp32 of a runner that reads a text in pieces, into blocks from 1 on.

    Args:
        encoder_ids: `Probe`'s; they have blocks of their own.
    """
    sampling = SamplingParams(max_new_tokens=1, prompt_logprobs=0)
    sequence = Sequence.of(SequenceRequest(ids, sampling, encoder_ids=list(encoder_ids)), block_size)
    sequence.blocks = list(range(1, 1 + -(-len(sequence.tokens) // block_size)))
    made: list[Tensor] = []
    for length in _pieces(len(ids)):
        piece = SequenceChunk(sequence, length + sequence.decoder_start * (not made))  # an encoder reads at once
        made.append(runner.run([piece]).float().clone())
        sequence.computed += piece.length
    runner.forget(sequence)
    return torch.cat(made)


def distance(actual: Tensor, expected: Tensor) -> float:
    """How far the logits of a runner that read a text in pieces are from the expected ones.

    That is the median of `distances`, of the first piece, the small ones, or the tokens read one by one, whichever is
    most.
    """
    first, *rest = _pieces(len(actual))
    parts = torch.split(distances(actual, expected), [first, sum(rest) - sum(_SINGLY), sum(_SINGLY)])
    return max(float(part.median()) for part in parts if len(part))


def distances(actual: Tensor, expected: Tensor) -> Tensor:
    """How far logits are from the expected ones at each position, (tokens,); both (tokens, vocabulary) fp32.

    That is the divergence (Kullback and Leibler's) of their distributions, relative to the median of those between the
    expected ones of different positions; infinite where logits are not numbers.
    """
    # Few logits are compared exactly; with a large vocabulary that would take a second.
    dtype = torch.float64 if expected.numel() < _MANY else torch.float32
    off, apart = [], []
    for position in range(len(expected)):  # one by one: all at once would take several times the logits' memory
        wanted, found_here, before = (
            each.to(dtype).log_softmax(-1) for each in (expected[position], actual[position], expected[position - 1])
        )
        chances = wanted.exp()
        off.append((chances * (wanted - found_here)).sum())
        apart.append((chances * (wanted - before)).sum())
    scale = torch.stack(apart).median().clamp_min(1e-12)
    return (torch.stack(off) / scale).nan_to_num(nan=torch.inf).clamp_min(0)
