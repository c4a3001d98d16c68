"""Prompts with images: gets the embeddings that a model's language model reads. Runs in the engine process.

Models differ in how they encode images: vision towers, tiles, projections, where image embeddings go, positions in one
dimension or three. All that is the model's own code, up to the call of its language model. That call is intercepted
here; a paged runner then reads its embeddings and positions in pieces of any size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from ...core.types import ImagePrompt, Images
from ..batch.chunk import SequenceChunk
from ..call_errors import CALL_ERRORS

log = logging.getLogger(__name__)

#: Dimensions of rotary positions (time, height, width) in models whose positions don't count tokens.
_AXES: Final = 3
#: The tensors that a language model may be given.
_KNOWN: Final = ("inputs_embeds", "position_ids")


@dataclass(frozen=True)
class Seen:
    """What the language model is given for a prompt, up to the end of the last image.

    Attributes:
        embeddings: (end, hidden).
        positions: (3, end), or None where a token's position is its index in the sequence.
    """

    embeddings: Tensor
    positions: Tensor | None


def model_inputs(images: Images, length: int, model: Any) -> dict[str, Tensor]:
    """The model's arguments for the images, to go with the first `length` ids of a prompt."""
    tensors = {}
    for name, array in images.inputs.items():
        numbers = np.frombuffer(array.data, np.dtype(array.dtype)).reshape(array.shape)
        if name.endswith("token_type_ids"):  # one for each token of the prompt; what follows it is text, type 0
            numbers = np.pad(numbers[:, :length], ((0, 0), (0, max(0, length - numbers.shape[1]))))
        tensor = torch.from_numpy(numbers.copy()).to(model.device)
        tensors[name] = tensor.to(model.dtype) if tensor.is_floating_point() else tensor
    return tensors


class PagedImages:
    """Encodes each prompt once, when a chunk first needs it, and keeps the result until the sequence ends.

    Args:
        model: has its own attention now; its language model's may be replaced later.
        example: a prompt to find out what the model gives its language model.

    Raises:
        ValueError: the model makes more than embeddings and positions of an image, which is not supported.
    """

    @classmethod
    def open(cls, model: Any, example: ImagePrompt) -> PagedImages | None:
        """Construct for a model; None, with the reason in the log, if it can't be paged."""
        try:
            return cls(model, example)
        except CALL_ERRORS as error:
            log.info("%s can't be paged: %s", type(model).__name__, error)
            return None

    def __init__(self, model: Any, example: ImagePrompt) -> None:
        self._model = model
        self._decoder: nn.Module = model.get_decoder()
        self._seen: dict[int, Seen] = {}
        self._counts = self._see(example.ids, example.images).positions is None

    def forget(self, sequence_id: int) -> None:
        """Drop the embeddings of a sequence that has ended, or will begin again."""
        self._seen.pop(sequence_id, None)

    def inputs(self, chunks: Sequence[SequenceChunk], ids: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """The model's arguments for a flat batch of chunks, some of which may belong to prompts with images.

        Args:
            ids, positions: (T,) of the flat batch; positions are indices in the sequences.
        """
        pieces = list(self._pieces(chunks))
        if not pieces:
            return {"input_ids": ids[None], "position_ids": positions[None]}
        embeddings = self._model.get_input_embeddings()(ids)
        if not self._counts:
            positions = positions.expand(_AXES, -1).clone()
        for start, chunk, seen in pieces:
            first, end = chunk.sequence.computed, chunk.sequence.computed + chunk.length
            given = seen.embeddings[first:end]
            embeddings[start : start + len(given)] = given
            if seen.positions is not None:
                positions[:, start : start + chunk.length] = _rotary(seen.positions, first, end)
        return {
            "inputs_embeds": embeddings[None],
            "position_ids": positions[None] if self._counts else positions[:, None],
        }

    def _pieces(self, chunks: Sequence[SequenceChunk]) -> Iterator[tuple[int, SequenceChunk, Seen]]:
        """Yield (first row, chunk, its encoded prompt) for the chunks whose inputs depend on an image."""
        start = 0
        for chunk in chunks:
            sequence = chunk.sequence
            images = sequence.images
            if images is not None and (sequence.computed < images.end or not self._counts):
                seen = self._seen.get(sequence.id)
                if seen is None:
                    seen = self._seen[sequence.id] = self._see(sequence.tokens, images)
                yield start, chunk, seen
            start += chunk.length

    @torch.inference_mode()
    def _see(self, tokens: list[int], images: Images) -> Seen:
        """Run the model up to its language model.

        Raises:
            ValueError: it gives its language model more than is handled here.
        """
        ids = torch.tensor([tokens[: images.end]], device=self._model.device)
        with _caught(self._decoder) as given:
            self._model(
                input_ids=ids, use_cache=False, logits_to_keep=1, **model_inputs(images, images.end, self._model)
            )
        # For example masks of its own (an image's tokens attend to one another), or features for single layers.
        if more := [name for name, value in given.items() if name not in _KNOWN and _has_tensor(value)]:
            raise ValueError(f"its language model is also given {', '.join(more)}")
        positions: Tensor | None = given.get("position_ids")
        if positions is not None:
            if positions.shape == (_AXES, 1, images.end):
                return Seen(given["inputs_embeds"][0], positions[:, 0])
            if positions.shape != (1, images.end) or bool((positions[0].diff() != 1).any()) or bool(positions[0, 0]):
                raise ValueError(f"its language model is given positions of shape {tuple(positions.shape)}")
        return Seen(given["inputs_embeds"][0], None)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(_has_tensor, value)) if isinstance(value, list | tuple) else isinstance(value, Tensor)


def _rotary(positions: Tensor, first: int, end: int) -> Tensor:
    """(3, end - first): the known positions, then for each token a position one further in every dimension."""
    known = positions.shape[1]
    following = torch.arange(max(first, known) - known, max(end, known) - known, device=positions.device)
    following = following + positions.max() + 1
    return torch.cat([positions[:, first:end], following.expand(_AXES, -1)], 1)


@contextmanager
def _caught(decoder: nn.Module) -> Iterator[dict[str, Any]]:
    """Context in which the language model computes nothing, and puts its arguments into the dict."""
    from transformers.modeling_outputs import BaseModelOutputWithPast

    given: dict[str, Any] = {}

    def forward(**arguments: Any) -> Any:
        given.update(arguments)
        return BaseModelOutputWithPast(last_hidden_state=arguments["inputs_embeds"])

    own = vars(decoder).get("forward")  # placement hooks put their forward there
    decoder.forward = forward
    try:
        yield given
    finally:
        del decoder.forward
        if own is not None:
            decoder.forward = own
