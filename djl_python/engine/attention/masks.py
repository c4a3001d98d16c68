"""Finds sliding windows that a model has in its masks only. Runs in the engine process, at load.

Most models pass the window to their attention function. Some only put it into the mask (Qwen2-MoE, PhiMoE), where a few
tokens don't show it. So while a model is watched, transformers gives it fake masks: each number in them is the window,
however the model cuts them. Nothing is computed for more tokens than are watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from ..call_errors import CALL_ERRORS
from ..transformers_private import remove_mask_function

#: The window of a call with a mask that may have one, or may not.
UNKNOWN: Final = -1
_NAMES: Final = ("sliding_window", "window_size", "attention_window")
_TOLD: Final = torch.int64  # no mask that is one has numbers of this type


def configured_window(model: Any) -> int:
    """The window in a model's configuration, in tokens, whether it is used or not; 0 for none."""
    configs = (model.config, model.config.get_text_config(decoder=True))
    windows = (getattr(config, name, None) for config in configs for name in _NAMES)
    return max((each for each in windows if isinstance(each, int)), default=0)


@contextmanager
def masks_with_windows(attention: str) -> Iterator[None]:
    """Context in which the masks of models with this attention carry their windows for `window_in`."""
    from transformers import AttentionMaskInterface

    AttentionMaskInterface.register(attention, _observed_attention)
    try:
        yield
    finally:
        # Registered for good, it would have masks prepared in every step.
        remove_mask_function(attention)


def window_in(mask: Tensor | None) -> int:
    """The window in a mask: 0 without a mask or a window, `UNKNOWN` for a mask that the model made itself."""
    if mask is None:
        return 0
    return int(mask.flatten()[0]) if mask.dtype == _TOLD else UNKNOWN


def _observed_attention(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    device: torch.device,
    local_size: int | None = None,
    **_: Any,
) -> Tensor | None:
    """Make a mask as transformers' mask functions do: (batch, 1, queries, keys), all the window; None without one.

    Args:
        mask_function: says whether a query sees a key, given indices of the batch, the head, the query and the key.
        local_size: the length of a window, or of chunks.
    """
    if local_size is None:
        return None
    window = local_size if _is_window(mask_function, local_size, device) else UNKNOWN
    return torch.full((batch_size, 1, q_length, kv_length), window, dtype=_TOLD, device=device)


def _is_window(sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], size: int, device: torch.device) -> bool:
    """Whether a query sees itself and the size - 1 keys before it; in chunks, the one asked for would be a first."""
    zero, query = torch.tensor(0, device=device), torch.tensor(2 * size, device=device)
    keys = torch.arange(2 * size + 2, device=device)
    try:
        seen = sees(zero, zero, query, keys)
    except CALL_ERRORS:  # it knows the tokens that are there only
        return False
    return torch.equal(seen, (keys > query - size) & (keys <= query))
