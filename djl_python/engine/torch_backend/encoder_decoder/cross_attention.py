"""What there is to know of an encoder-decoder model to run its decoder on a paged cache. Engine process, at load.

Its decoder is run on a few tokens, and its attention is observed: layers over the decoder's own tokens, and layers over
what the encoder has read (cross-attention). What a flat batch of several sequences would get wrong is replaced: the
embedding of positions, which would count on from one sequence into the next, and scores by the distance of tokens (T5),
which the cache adds by the positions that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn

from ...attention.lookup import answering
from ...attention.parameters import AttentionParams, LayerShape

# Tokens of the encoder and of the decoder that are read to tell the kinds of attention apart.
_ENCODED: Final = 5
_DECODED: Final = 3
#: The decoder's embedding of positions, where it has one: in BART and what descends from it.
_POSITIONS: Final = "embed_positions"
#: What a T5's attention adds to its scores, the method that makes it, and the setting that says how far tokens differ.
_BIAS: Final = "position_bias"
_MAKES_BIAS: Final = "compute_bias"
_FARTHEST: Final = "relative_attention_max_distance"


@dataclass(frozen=True)
class CrossedDecoder:
    """A decoder whose attention is `PAGED`.

    Attributes:
        layers: the geometry of each layer's attention, which is that of its cross-attention too.
        own, crossed: each layer's index, by id of the module of its attention, and of its cross-attention.
        bias: of a layer's own attention, by id of the module: `AttentionParams.distance_bias`.
        positions: in place of the model's embedding of positions; None: it has none.
    """

    layers: list[LayerShape]
    own: Mapping[int, int]
    crossed: Mapping[int, int]
    bias: Mapping[int, Tensor]
    positions: GivenPositions | None

    @classmethod
    def of(cls, model: Any, longest: int, undo: ExitStack) -> CrossedDecoder:
        """Observe the model, whose attention is `PAGED`, and change it so that its decoder takes flat batches.

        Args:
            longest: most tokens of the decoder.
            undo: gives the model back what it had, if it is closed before all of it is popped.

        Raises:
            ValueError: its attention says more than the cache knows; or one of `CALL_ERRORS`, by the model's code.
        """
        decoder = model.get_decoder()
        calls = _calls(decoder, model.config, _DECODED)
        own = [call for call in calls if not call.is_crossed]
        crossed = [call for call in calls if call.is_crossed]
        if not own or [call.shape for call in own] != [call.shape for call in crossed]:
            raise ValueError("its layers do not each attend to the decoder's tokens, and then to the encoder's")
        bias = _distance_bias(decoder, model.config, {call.module for call in own}) if own[0].bias is not None else {}
        return cls(
            [call.shape for call in own],
            {call.module: index for index, call in enumerate(own)},
            {call.module: index for index, call in enumerate(crossed)},
            bias,
            GivenPositions.put_in(decoder, model.config, longest, undo),
        ).without_own_bias(decoder, undo)

    def without_own_bias(self, decoder: nn.Module, undo: ExitStack) -> CrossedDecoder:
        """Keep the decoder from computing what it would add to scores for all pairs of tokens in a flat batch."""
        for module in decoder.modules():
            if self.bias and hasattr(module, _MAKES_BIAS):
                setattr(module, _MAKES_BIAS, _nothing_for(module))
                undo.callback(delattr, module, _MAKES_BIAS)
        return self

    def parameters_of(self, module: nn.Module, how: AttentionParams) -> AttentionParams:
        """What a layer's call of its own attention says, and what is added to its scores."""
        bias = self.bias.get(id(module))
        return how if bias is None else replace(how, distance_bias=bias)


class GivenPositions(nn.Module):
    """The embedding of the positions that it is told, whatever it is called with.

    Args:
        table: (positions, width), of each position.

    Attributes:
        now: (T,) the positions of the tokens of the step.
    """

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self.table: Tensor
        self.now: Tensor

    @classmethod
    def put_in(cls, decoder: Any, config: Any, longest: int, undo: ExitStack) -> GivenPositions | None:
        """Replace the decoder's own embedding of positions, if it has one."""
        own = getattr(decoder, _POSITIONS, None)
        if own is None:
            return None
        made = cls(_table(decoder, own, config, longest))
        setattr(decoder, _POSITIONS, made)
        undo.callback(setattr, decoder, _POSITIONS, own)
        return made

    def forward(self, *args: Any, **others: Any) -> Tensor:
        """(1, T, width)"""
        return self.table[self.now][None]


@dataclass(frozen=True)
class _Call:
    """A call of a layer's attention: by which module, over the encoder's tokens or the decoder's, adding what."""

    module: int
    shape: LayerShape
    is_crossed: bool
    bias: Tensor | None


def _calls(decoder: Any, config: Any, tokens: int) -> list[_Call]:
    """The attention of all layers, when the decoder reads so many tokens."""
    calls: list[_Call] = []

    def note(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        how: AttentionParams,
        mask: Tensor | None,
        others: Mapping[str, Any],
    ) -> Tensor:
        unread = [name for name, given in others.items() if isinstance(given, Tensor) and name != _BIAS]
        if unread or mask is not None or how.window or how.softcap or how.sinks is not None:
            raise ValueError(f"its attention is also given {', '.join(unread) or 'a mask, a window, a cap or sinks'}")
        if key.shape[2] not in (tokens, _ENCODED):
            raise ValueError(f"its attention has {key.shape[2]} keys")
        bias = others.get(_BIAS)
        if bias is not None and key.shape[2] == _ENCODED and bool(bias.any()):
            raise ValueError("its cross-attention adds to scores by the distance of tokens")
        shape = LayerShape(query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        calls.append(_Call(id(module), shape, key.shape[2] == _ENCODED, bias))
        return value.new_zeros(1, tokens, query.shape[1], value.shape[3])

    with answering(note), torch.inference_mode():
        _read(decoder, config, tokens)
    return calls


def _read(decoder: Any, config: Any, tokens: int) -> None:
    """Have the decoder read so many tokens, none of them padding."""
    weight = next(decoder.parameters())
    ids = torch.full((1, tokens), 1 if config.pad_token_id != 1 else 0, device=weight.device)
    encoded = torch.zeros(1, _ENCODED, config.hidden_size, dtype=weight.dtype, device=weight.device)
    decoder(input_ids=ids, encoder_hidden_states=encoded, use_cache=False)


def _distance_bias(decoder: Any, config: Any, own: set[int]) -> dict[int, Tensor]:
    """What the decoder's layers add to scores, (heads, distances), by id of the module of their attention.

    Raises:
        ValueError: it depends on more than the distance, or nothing says from which distance on it stays the same.
    """
    farthest = getattr(config, _FARTHEST, None)
    if not isinstance(farthest, int):
        raise ValueError(f"its attention adds to scores, and its configuration has no {_FARTHEST}")
    tokens = max(farthest, _ENCODED) + 1
    biases: dict[int, Tensor] = {}
    known: dict[int, Tensor] = {}  # by id of what was added: a T5's layers all add the same
    for call in _calls(decoder, config, tokens):
        if call.module not in own:
            continue
        if call.bias is None or call.bias.shape[2:] != (tokens, tokens):
            raise ValueError("its layers do not all add to scores by the distance of tokens")
        added = call.bias[0]
        if id(call.bias) not in known:
            by_distance = added[:, -1].flip(-1)
            middle = tokens // 2
            if not torch.equal(added[:, middle, : middle + 1].flip(-1), by_distance[:, : middle + 1]):
                raise ValueError("what its attention adds to scores depends on more than the distance of tokens")
            known[id(call.bias)] = by_distance.contiguous().clone()
        biases[call.module] = known[id(call.bias)]
    return biases


def _nothing_for(module: Any) -> Callable[..., Tensor]:
    def nothing(*args: Any, **others: Any) -> Tensor:
        weight: Tensor = next(module.parameters())
        return weight.new_zeros(1, 1, 1, 1)

    return nothing


class _Seen(Exception):
    """What the decoder makes of positions has been seen: it need not read any further."""


def _table(decoder: Any, own: nn.Module, config: Any, longest: int) -> Tensor:
    """(longest, width) what a decoder adds to its tokens by their positions."""
    tables: list[Tensor] = []

    def see(module: nn.Module, args: Any, made: Tensor) -> NoReturn:
        tables.append(made.detach())
        raise _Seen

    hook = own.register_forward_hook(see)
    try:
        with torch.inference_mode():
            _read(decoder, config, longest)
    except _Seen:
        pass
    finally:
        hook.remove()
    return tables[0].reshape(longest, -1).clone()
