"""How far positions go, and rotations that don't change with a batch. Runs in the engine process, once."""

from __future__ import annotations

import logging
from typing import Any, Final

import torch
from torch import nn

log = logging.getLogger(__name__)

_CONTEXTS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
_UNKNOWN_CONTEXT: Final = 2048
_LONG: Final = "longrope"
#: A kind of rotation that transformers does not know, and therefore leaves as it is.
_SETTLED: Final = "settled"


def contexts(config: Any) -> tuple[int, int]:
    """(the context of a sequence, what option.max_model_len may make of it), in tokens.

    YaRN's factor says what a checkpoint is made for. A linear one leaves open whether `max_position_embeddings` has it
    already, so that more is a matter of asking for it.
    """
    stated = next(
        (value for name in _CONTEXTS if isinstance(value := getattr(config, name, None), int) and value > 0),
        _UNKNOWN_CONTEXT,
    )
    rope = getattr(config, "rope_parameters", None) or {}
    factor = float(rope.get("factor") or 1)
    if rope.get("rope_type") == "yarn":
        context = max(stated, int(factor * (rope.get("original_max_position_embeddings") or stated)))
        return context, context
    return stated, max(stated, int(factor * stated)) if rope.get("rope_type") == "linear" else stated


def attends_in_chunks(config: Any) -> bool:
    """Whether layers have chunks of positions that attention must not look across (Llama 4)."""
    return "chunked_attention" in (getattr(config, "layer_types", None) or ())


def original_length(module: nn.Module) -> int:
    """With more tokens than so many, LongRoPE's positions turn otherwise; 0: they don't, or it is not LongRoPE."""
    if getattr(module, "rope_type", None) != _LONG:
        return 0
    rope: dict[str, Any] = module.config.rope_parameters  # type: ignore[union-attr, assignment]
    return int(rope["original_max_position_embeddings"])


@torch.inference_mode()
def settle_rotations_(model: nn.Module, longest: int, *, but_long: bool = False) -> bool:
    """Have positions turn as they do in a sequence of `longest` tokens, in all sequences; whether anything changed.

    Some rotations (LongRoPE's, dynamic NTK's) are others beyond the length of the training, and transformers chooses by
    the longest sequence of a batch: then what a token's key is, and a text, would depend on who else is there, on how a
    prompt is cut into pieces, and on when the cache came by a prefix.

    Args:
        but_long: leave LongRoPE as it is: the native program has both of its tables, and chooses for each sequence.
    """
    settled = False
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if but_long and original_length(module):
            continue
        if isinstance(kinds, str) and _changes(kinds):
            _turn(module, longest)
            module.rope_type = _SETTLED  # type: ignore[assignment]
            settled = True
        elif isinstance(kinds, dict) and (changing := [layers for layers, kind in kinds.items() if _changes(kind)]):
            for layers in changing:
                _turn(module, longest, layer_type=layers)
            module.rope_type = kinds | dict.fromkeys(changing, _SETTLED)  # type: ignore[assignment]
            settled = True
    if settled:
        log.info("positions turn as in a text of %d tokens, however long one is (option.max_model_len)", longest)
    return settled


def _changes(kind: str) -> bool:
    return "dynamic" in kind or kind == _LONG


def _turn(module: nn.Module, longest: int, **which: str) -> None:
    """Let it choose for a sequence of this length."""
    frequencies = next(module.buffers())
    module(torch.zeros(1, device=frequencies.device), torch.tensor([[longest - 1]], device=frequencies.device), **which)
