"""What sentence-transformers puts behind a model's hidden states: pooling and dense layers, in torch.

Runs in the engine process. Normalization is the worker's: requests differ in it, and in how many dimensions they keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from ...core.errors import ModelLoadError
from ..checkpoints.stored.checkpoint_files import open_tensors
from .sentence_transformers import Dense, Modules


@dataclass(frozen=True)
class Segments:
    """Which rows are each text's, one text after the other.

    Attributes:
        lengths: (texts,) how many rows a text has, at least one.
        skipped: (texts,) how many of its tokens come before these.
    """

    lengths: Tensor
    skipped: Tensor

    @property
    def starts(self) -> Tensor:
        """(texts,) each text's first row."""
        return self.lengths.cumsum(0) - self.lengths

    def numbers(self) -> Tensor:
        """(rows, 1) which token of its text a row is, from 1 on."""
        before = torch.repeat_interleave(self.starts - self.skipped, self.lengths)
        return (torch.arange(1, len(before) + 1, device=before.device) - before).unsqueeze(-1)


#: (hidden states [rows, width], their texts) -> [texts, width].
Pooling = Callable[[Tensor, Segments], Tensor]

_WEIGHTS: Final = "model.safetensors"


def _cls(hidden: Tensor, of: Segments) -> Tensor:
    return hidden[of.starts]


def _last(hidden: Tensor, of: Segments) -> Tensor:
    return hidden[of.starts + of.lengths - 1]


def _max(hidden: Tensor, of: Segments) -> Tensor:
    return torch.segment_reduce(hidden, "max", lengths=of.lengths, unsafe=True)


def _sum(hidden: Tensor, of: Segments) -> Tensor:
    return torch.segment_reduce(hidden, "sum", lengths=of.lengths, unsafe=True)


def _mean(hidden: Tensor, of: Segments) -> Tensor:
    return _sum(hidden, of) / of.lengths.unsqueeze(-1)


def _mean_sqrt_len(hidden: Tensor, of: Segments) -> Tensor:
    return _sum(hidden, of) / of.lengths.unsqueeze(-1).sqrt()


def _weighted_mean(hidden: Tensor, of: Segments) -> Tensor:
    """The mean, where the n-th token counts n times."""
    weights = of.numbers().to(hidden.dtype)
    return _sum(hidden * weights, of) / _sum(weights, of)


POOLINGS: Final[Mapping[str, Pooling]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


class Pooler:
    """Makes one vector of the hidden states of each text. `name` says how."""

    def __init__(self, modules: Modules, path: Path, device: torch.device, *, is_causal: bool) -> None:
        names = modules.poolings or ("lasttoken" if is_causal else "mean",)
        self.name = "+".join(names)
        self._poolings = [POOLINGS[name] for name in names]
        self._includes_prompt = modules.includes_prompt
        self._dense = [_layer(path, one).to(device) for one in modules.dense]

    def __call__(self, hidden: Tensor, lengths: Tensor, unpooled: Tensor) -> Tensor:
        """The vectors in fp32, of shape [texts, dimensions].

        Args:
            hidden: [tokens, width], text after text.
            lengths: how many of the tokens are each text's.
            unpooled: how many of these are a prompt's, the first ones, which the checkpoint may leave out.
        """
        hidden = hidden.float()
        of = Segments(lengths, torch.zeros_like(lengths))
        if not self._includes_prompt:
            skipped = torch.minimum(unpooled, lengths - 1)
            hidden = hidden[(of.numbers() > torch.repeat_interleave(skipped, lengths).unsqueeze(-1)).squeeze(-1)]
            of = Segments(lengths - skipped, skipped)
        vectors = torch.cat([pool(hidden, of) for pool in self._poolings], -1)
        for layer in self._dense:
            vectors = layer(vectors)
        return vectors


def _layer(path: Path, dense: Dense) -> nn.Module:
    """A dense layer with its weights, in fp32.

    Raises:
        ModelLoadError: the layer has no safetensors file, or torch does not have its activation.
    """
    file = path / dense.folder / _WEIGHTS
    activation = getattr(nn, dense.activation, None)
    if not (isinstance(activation, type) and issubclass(activation, nn.Module)):
        raise ModelLoadError(f"{file.parent / 'config.json'}: torch has no activation {dense.activation!r}")
    if not file.is_file():
        raise ModelLoadError(
            f"{file.parent}: there is no {_WEIGHTS}; other files of weights may hold code, and are not read"
        )
    weights = {name: opened.get_tensor(name).float() for name, opened in open_tensors(file.parent)}
    weight = weights.get("linear.weight")
    if weight is None:
        raise ModelLoadError(f"{file}: there is no linear.weight; its tensors: {', '.join(sorted(weights))}")
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias="linear.bias" in weights)
    linear.load_state_dict({name.removeprefix("linear."): tensor for name, tensor in weights.items()})
    return nn.Sequential(linear, activation()).eval()
