"""Runs an encoder-decoder model, its decoder on a flat batch of tokens over the paged cache. Engine process.

The encoder reads a sequence once, in the step that computes its first chunk, together with others of about its length.
The keys and values of every layer's cross-attention stay in the sequence's first blocks, which have the positions
before `Sequence.decoder_start`; those of the decoder's own attention are in the blocks that follow. One forward pass of
the decoder computes the tokens of all sequences.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention.lookup import answering
from ...attention.parameters import AttentionParams
from ...batch.chunk import SequenceChunk
from ...batch.sequence import Sequence
from ...devices.transfers import indices, upload
from ..paged_runner import logit_rows
from ..torch_cache import Group, TorchCache, TorchPlan
from .cross_attention import CrossedDecoder

#: Padding of a text beside a longer one in a run of the encoder: tokens, or a part of the longer one's.
_PADDING_TOKENS: Final = 8
_PADDING_SHARE: Final = 0.2


class EncoderDecoderRunner:
    """A `ModelRunner` of a model of transformers', whose attention is `PAGED`.

    Args:
        cache: has the layers of `decoder`.

    Attributes:
        model: the model itself.
    """

    def __init__(self, model: Any, decoder: CrossedDecoder, cache: TorchCache, device: torch.device) -> None:
        self.model = model
        self._decoder = decoder
        self._cache = cache
        self._device = device
        self._width: int = model.config.hidden_size

    @torch.inference_mode()
    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        chunk_of = {chunk.sequence.id: chunk for chunk in chunks}
        with self._cache.step(_of_decoder(chunks, self._cache.block_size)) as own:
            # In the order in which the cache groups them.
            flat = [chunk_of[chunk.sequence.id] for chunk in own.order]
            begun = [chunk for chunk in flat if chunk.encoder_length]
            crossed = self._crossed_plan(flat, own, begun)
            ids = indices([[token for chunk in own.order for token in chunk.tokens]], self._device)
            keep = upload(logit_rows(chunks, own.order), self._device)
            return self._decode(ids, self.encode(begun), own, crossed, keep)

    def operator_seconds(self) -> dict[str, float]:
        return {}

    def forget(self, sequence: Sequence) -> None:
        return  # all that is kept is in blocks

    def encode(self, chunks: list[SequenceChunk]) -> Tensor:
        """What the encoder makes of the chunks' positions that are its own, (1, positions, width).

        Without tokens one position is computed, because layers need input; nobody reads its result.
        """
        if not chunks:
            return torch.zeros(1, 1, self._width, dtype=self.model.dtype, device=self._device)
        made: dict[int, Tensor] = {}
        for batch in _of_similar_lengths(chunks):
            lengths = [sequence.encoder_length for sequence in batch]
            ids = np.full((len(batch), max(lengths)), self.model.config.pad_token_id or 0, np.int64)
            for row, sequence, length in zip(ids, batch, lengths, strict=True):
                row[:length] = sequence.tokens[:length]
            seen = None
            if min(lengths) < max(lengths):
                within = np.arange(max(lengths))[None] < np.array(lengths)[:, None]
                seen = upload(within, self._device)[:, None, None]
            with answering(functools.partial(_attend_both_ways, seen)):
                hidden = self.model.get_encoder()(input_ids=upload(ids, self._device)).last_hidden_state
            for states, sequence in zip(hidden, batch, strict=True):
                made[sequence.id] = states[sequence.computed : sequence.encoder_length]
        return torch.cat([made[chunk.sequence.id] for chunk in chunks]).unsqueeze(0)

    def _decode(self, ids: Tensor, encoded: Tensor, own: TorchPlan, crossed: TorchPlan, keep: Tensor) -> Tensor:
        """(rows, vocabulary) logits of the positions `keep` of the flat batch `ids`."""
        from transformers.modeling_outputs import BaseModelOutput

        decoder, cache = self._decoder, self._cache

        def attend(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            how: AttentionParams,
            mask: Tensor | None,
            others: Mapping[str, Any],
        ) -> Tensor:
            if (layer := decoder.crossed.get(id(module))) is not None:
                return cache.attend(layer, crossed, query, key, value, how)
            return cache.attend(decoder.own[id(module)], own, query, key, value, decoder.parameters_of(module, how))

        if decoder.positions is not None:
            decoder.positions.now = own.positions
        with answering(attend), _only(keep, self.model.get_output_embeddings()):
            output = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=encoded), decoder_input_ids=ids, use_cache=False
            )
        logits: Tensor = output.logits[0]
        return logits

    def _crossed_plan(self, flat: list[SequenceChunk], own: TorchPlan, begun: list[SequenceChunk]) -> TorchPlan:
        """The plan of a step's cross-attention.

        Args:
            flat: the chunks in the order of `own`.
            begun: those of them with positions of the encoder, whose keys and values the step makes.
        """
        size = self._cache.block_size
        groups = list(_groups(flat, own, size))
        slots = [
            chunk.sequence.blocks[place // size] * size + place % size
            for chunk in begun
            for place in range(chunk.sequence.computed, chunk.sequence.encoder_length)
        ] or [self._cache.spare_block * size]
        tables = [group.table(size) for group in groups]
        lasts = [np.array(group.lengths, np.int64) - 1 for group in groups]
        flat_tables = [table.reshape(-1) for table in tables]
        numbers = upload(np.concatenate([np.array(slots, np.int64), *flat_tables, *lasts]), self._device)
        where, *parts = torch.split(numbers, [len(slots), *map(len, flat_tables), *map(len, lasts)])
        plan = TorchPlan(order=own.order, positions=own.positions, slots=where, groups=[])
        for group, table, blocks, last in zip(groups, tables, parts[: len(groups)], parts[len(groups) :], strict=True):
            # A query sees all that the encoder has read, as if it were the last of it.
            positions = last[:, None].expand(-1, group.queries)
            plan.groups.append(Group(group.start, group.stop, group.queries, blocks.view(table.shape), positions, size))
        return plan


@dataclass(frozen=True)
class _Crossing:
    """Consecutive rows of the flat batch that one call of cross-attention serves: sequences of `queries` rows each."""

    start: int
    stop: int
    queries: int
    sequences: list[Sequence]

    @property
    def lengths(self) -> list[int]:
        """How many tokens each one's encoder has read."""
        return [sequence.encoder_length for sequence in self.sequences]

    def table(self, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(sequences, blocks) numbers of the blocks that have them, of `size` tokens, padded with 0."""
        table = np.zeros((len(self.sequences), -(-max(self.lengths) // size)), np.int64)
        for row, sequence in zip(table, self.sequences, strict=True):
            used = -(-sequence.encoder_length // size)
            row[:used] = sequence.blocks[:used]
        return table


def _groups(flat: list[SequenceChunk], own: TorchPlan, size: int) -> Iterator[_Crossing]:
    """The rows of each group of a decoder's own attention, where texts of very different lengths are apart."""
    chunks = iter(flat)
    for group in own.groups:
        start = group.start
        members = [chunk.sequence for chunk in itertools.islice(chunks, (group.stop - group.start) // group.queries)]
        for _, run in itertools.groupby(members, lambda sequence: _power(sequence, size)):
            sequences = list(run)
            stop = start + len(sequences) * group.queries
            yield _Crossing(start, stop, group.queries, sequences)
            start = stop


def _power(sequence: Sequence, size: int) -> int:
    return (-(-sequence.encoder_length // size) - 1).bit_length()


def _of_decoder(chunks: list[SequenceChunk], size: int) -> list[SequenceChunk]:
    """The decoder's part of each chunk, as of a sequence without an encoder; those with less encoded text come first.

    Args:
        size: tokens of a block.
    """
    made: list[SequenceChunk] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.sequence.encoder_length):
        sequence, start = chunk.sequence, chunk.sequence.decoder_start
        decoded = Sequence(
            sequence.id, sequence.tokens[start:], sequence.prompt_length - start, sequence.sampling,
            computed=max(sequence.computed - start, 0), blocks=sequence.blocks[start // size :],
        )  # fmt: skip
        made.append(SequenceChunk(decoded, chunk.length - chunk.encoder_length))
    return made


def _of_similar_lengths(chunks: list[SequenceChunk]) -> Iterator[list[Sequence]]:
    """The chunks' sequences in batches, each filled up to its longest text by a fifth or by a few tokens at most."""
    batch: list[Sequence] = []
    for sequence in sorted((chunk.sequence for chunk in chunks), key=lambda each: -each.encoder_length):
        if batch:
            longest = batch[0].encoder_length
            if sequence.encoder_length < longest - max(_PADDING_TOKENS, int(longest * _PADDING_SHARE)):
                yield batch
                batch = []
        batch.append(sequence)
    if batch:
        yield batch


def _attend_both_ways(
    seen: Tensor | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    how: AttentionParams,
    mask: Tensor | None,
    others: Mapping[str, Any],
) -> Tensor:
    """An encoder's attention: every token of a text sees all of it.

    Args:
        seen: (texts, 1, 1, positions) which positions are a text's; None: all are.
    """
    bias = others.get("position_bias")
    if seen is not None:
        bias = seen if bias is None else bias.masked_fill(~seen, -torch.inf)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=how.scaling).transpose(1, 2)


@contextmanager
def _only(keep: Tensor, head: nn.Module) -> Iterator[None]:
    """Context in which the model's last linear computes these positions of (1, T, width) alone."""
    hook = head.register_forward_pre_hook(lambda module, args: (args[0][:, keep], *args[1:]))
    try:
        yield
    finally:
        hook.remove()
