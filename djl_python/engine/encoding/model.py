"""Computes a batch of sequences with a model of transformers' on torch. Runs in the engine process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.errors import ParameterError
from ...core.text_tasks import Granularity
from ...ipc.encodings import EncoderInput
from ..devices.transfers import upload
from .loading import LoadedEncoder
from .modules import Pooler
from .settings import EncoderSettings, Head

Numbers = npt.NDArray[np.float32]

#: What each head has numbers for.
_GRANULARITIES: Final = {
    Head.EMBEDDING: {Granularity.TEXT, Granularity.TOKENS},
    Head.CLASSES: {Granularity.TEXT},
    Head.TOKEN_CLASSES: {Granularity.TOKENS},
    Head.SPANS: {Granularity.TOKENS},
    Head.MASKED: {Granularity.TOKENS, Granularity.SPARSE},
}
#: Lengths of the sequences that show whether padding changes what a model computes.
_TRIAL_LENGTHS: Final = (5, 12)
#: How far numbers may be apart that should be equal, as a part of the largest.
_TOLERANCE: Final = {torch.float32: 1e-3}
_COARSE: Final = 5e-2


class Program(Protocol):
    """Computes hidden states of texts in a row, without padding; see `EncoderProgram`.

    Attributes:
        weight_bytes: bytes of weight matrices that a run reads.
    """

    weight_bytes: int

    def run(self, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int]]) -> Tensor:
        """[tokens, width] fp32, text after text, valid until the next run."""
        ...

    def close(self) -> None:
        """End its threads."""
        ...


class EncoderModel:
    """A model, and what is behind its hidden states.

    Args:
        program: computes the hidden states of an embedding; None: torch does.

    Attributes:
        context, vocabulary: what a sequence and its ids are below.
        pooling: how one vector is made of those of a text's tokens; "" where none is.
    """

    def __init__(self, loaded: LoadedEncoder, settings: EncoderSettings, program: Program | None = None) -> None:
        self.context = loaded.context
        self.vocabulary = loaded.vocabulary
        self._loaded = loaded
        self._head = settings.head
        self._program = program
        self._pooler: Pooler | None = None
        self.pooling = ""
        if settings.head is Head.EMBEDDING:
            self._pooler = Pooler(
                settings.modules, Path(settings.model_path), loaded.device, is_causal=loaded.is_causal
            )
            self.pooling = self._pooler.name
        elif settings.head is Head.CLASSES and loaded.model.config.pad_token_id is None:
            loaded.model.config.pad_token_id = loaded.pad_id  # a decoder finds a text's last token by it

    def check(self, one: EncoderInput) -> None:
        """Check that an input can be computed.

        Raises:
            ParameterError: it is empty, too long, has unknown ids, or wants what the model does not have.
        """
        if not 0 < len(one.ids) <= self.context:
            raise ParameterError(f"a text has {len(one.ids)} tokens; expected 1 to {self.context}", "inputs")
        if not 0 <= min(one.ids) <= max(one.ids) < self.vocabulary:
            raise ParameterError(f"the model has no such token ids; expected 0 to {self.vocabulary - 1}", "inputs")
        if one.granularity not in _GRANULARITIES[self._head]:
            raise ParameterError(f"a model with {self._head} has nothing for each {one.granularity.value}", "inputs")

    def run(self, inputs: Sequence[EncoderInput]) -> list[Numbers]:
        """What the model says of each sequence: [width], [tokens, width], or [entries of the vocabulary]."""
        with torch.inference_mode():
            lengths = [len(one.ids) for one in inputs]
            if self._pooler is None:
                outputs: Sequence[Tensor] = list(self._outputs(inputs, lengths))
                return _on_cpu([_wanted(*each) for each in zip(inputs, outputs, strict=True)])
            rows = self._rows(inputs, lengths)
            outputs = torch.split_with_sizes(rows, lengths)
            if any(one.granularity is Granularity.TEXT for one in inputs):
                on_device = upload(np.array(lengths), self._loaded.device)
                unpooled = upload(np.array([one.unpooled for one in inputs]), self._loaded.device)
                pooled = self._pooler(rows, on_device, unpooled)
                outputs = [
                    pooled[index] if one.granularity is Granularity.TEXT else outputs[index]
                    for index, one in enumerate(inputs)
                ]
            return _on_cpu([_wanted(*each) for each in zip(inputs, outputs, strict=True)])

    def _rows(self, inputs: Sequence[EncoderInput], lengths: Sequence[int]) -> Tensor:
        """The hidden states of all tokens, [tokens, width]."""
        if self._program is not None:
            types = [one.type_ids if self._loaded.takes_types else () for one in inputs]
            return self._program.run([one.ids for one in inputs], types)
        hidden = self._outputs(inputs, lengths)
        if min(lengths) == max(lengths):
            return hidden.flatten(0, 1)
        return torch.cat([hidden[row, :length] for row, length in enumerate(lengths)])

    def _outputs(self, inputs: Sequence[EncoderInput], lengths: Sequence[int]) -> Tensor:
        """The head's outputs: [sequences, tokens, width], or [sequences, width] of a head for texts."""
        device, longest = self._loaded.device, max(lengths)
        ids = np.full((len(inputs), longest), self._loaded.pad_id, np.int64)
        for row, one in enumerate(inputs):
            ids[row, : len(one.ids)] = one.ids
        arguments: dict[str, Any] = {"input_ids": upload(ids, device)}
        if min(lengths) < longest:
            arguments["attention_mask"] = upload(
                (np.arange(longest)[None] < np.array(lengths)[:, None]).astype(np.int64), device
            )
        if self._loaded.takes_types:
            types = np.zeros_like(ids)
            for row, one in enumerate(inputs):
                types[row, : len(one.type_ids)] = one.type_ids
            arguments["token_type_ids"] = upload(types, device)
        if self._loaded.is_causal:
            arguments["use_cache"] = False
        output = self._loaded.model(**arguments)
        if self._head is Head.EMBEDDING:
            hidden: Tensor = output.last_hidden_state
            return hidden
        if self._head is Head.SPANS:
            return torch.stack((output.start_logits, output.end_logits), -1)
        logits: Tensor = output.logits
        return logits

    def trial_inputs(self) -> list[EncoderInput]:
        """Two sequences of different lengths, for trials."""
        rng = random.Random(0)
        granularity = min(_GRANULARITIES[self._head], key=lambda one: one is not Granularity.TEXT)
        return [
            EncoderInput(rng.choices(range(1, self.vocabulary), k=min(length, self.context)), granularity=granularity)
            for length in _TRIAL_LENGTHS
        ]

    def pads(self) -> bool:
        """Whether a sequence's numbers stay the same beside a longer one; else equal lengths alone are batched.

        Some models look at the text's shape: by convolutions, blocks, or the last id that is no padding.
        """
        inputs = self.trial_inputs()
        alone, *_ = self.run(inputs[:1])
        beside, *_ = self.run(inputs)
        most = float(np.abs(alone).max())
        return bool(np.abs(alone - beside).max() <= _TOLERANCE.get(self._loaded.dtype, _COARSE) * max(most, 1e-6))


def _wanted(one: EncoderInput, output: Tensor) -> Tensor:
    """The outputs of one row of a batch that its input asks for."""
    if one.granularity is Granularity.TEXT:
        return output
    if one.granularity is Granularity.SPARSE:
        return output[: len(one.ids)].float().relu().log1p().amax(0)
    return output[one.positions] if one.positions else output[: len(one.ids)]


def _on_cpu(tensors: Sequence[Tensor]) -> list[Numbers]:
    """The arrays in fp32, brought in one transfer."""
    flat = torch.cat([one.reshape(-1).float() for one in tensors]).cpu().numpy()
    ends = np.cumsum([one.numel() for one in tensors])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(tuple(one.shape)) for part, one in zip(parts, tensors, strict=True)]
