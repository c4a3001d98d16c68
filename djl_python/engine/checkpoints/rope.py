"""Rotary embeddings that don't change with the batch. Runs in the engine process, at load."""

from __future__ import annotations

import logging
from typing import Any, Final

import torch
from torch import nn

log = logging.getLogger(__name__)

_LONG: Final = "longrope"
#: A rotary embedding's type that transformers does not know, so that it leaves the frequencies as they are.
_FIXED: Final = "fixed"


def attends_in_chunks(config: Any) -> bool:
    """Whether layers have chunks of positions that attention must not look across (Llama 4)."""
    return "chunked_attention" in (getattr(config, "layer_types", None) or ())


def original_length(module: nn.Module) -> int:
    """The number of tokens beyond which LongRoPE changes its frequencies; 0: they never change."""
    if getattr(module, "rope_type", None) != _LONG:
        return 0
    rope: dict[str, Any] = module.config.rope_parameters  # type: ignore[union-attr, assignment]
    return int(rope["original_max_position_embeddings"])


@torch.inference_mode()
def freeze_rope_(model: nn.Module, longest: int, *, but_long: bool = False) -> bool:
    """Fix rotary embeddings to those of a sequence of `longest` tokens, in all sequences; returns whether any changed.

    Some rotary embeddings (LongRoPE, dynamic NTK) change beyond the training length, and transformers chooses by the
    longest sequence of a batch. Keys, and so texts, would depend on the other sequences, on how a prompt is cut into
    pieces, and on when a prefix came into the cache.

    Args:
        but_long: leave LongRoPE as it is: the native program has both of its tables, and chooses for each sequence.
    """
    fixed = False
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if but_long and original_length(module):
            continue
        if isinstance(kinds, str) and _changes(kinds):
            _choose_frequencies(module, longest)
            module.rope_type = _FIXED  # type: ignore[assignment]
            fixed = True
        elif isinstance(kinds, dict) and (changing := [layers for layers, kind in kinds.items() if _changes(kind)]):
            for layers in changing:
                _choose_frequencies(module, longest, layer_type=layers)
            module.rope_type = kinds | dict.fromkeys(changing, _FIXED)  # type: ignore[assignment]
            fixed = True
    if fixed:
        log.info("positions turn as in a text of %d tokens, however long one is (option.max_model_len)", longest)
    return fixed


def _changes(kind: str) -> bool:
    return "dynamic" in kind or kind == _LONG


def _choose_frequencies(module: nn.Module, longest: int, **which: str) -> None:
    """Let a rotary embedding choose its frequencies for a sequence of this length."""
    frequencies = next(module.buffers())
    module(torch.zeros(1, device=frequencies.device), torch.tensor([[longest - 1]], device=frequencies.device), **which)
