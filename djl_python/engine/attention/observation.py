"""Observes the attention calls of a model whose attention is `PAGED`. Runs in the engine process, at load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from .dense import attention
from .lookup import PAGED, answering
from .masks import UNKNOWN, masks_with_windows, window_in
from .parameters import AttentionParams

#: (module, query, key, value, result, parameters with the window that the call or its mask says, or `masks.UNKNOWN`)
AttentionObserver = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, AttentionParams], None]

# Tensors that models pass to every attention, and that say nothing beyond the tokens' order.
_POSITIONS: Final = frozenset({"position_ids", "cache_position"})


@contextmanager
def observed_attention(observer: AttentionObserver) -> Iterator[None]:
    """Context in which a model with `PAGED` attention attends to its own tokens alone, and `observer` sees all calls.

    Here alone, such a model makes masks: a layer's window may be in its mask only.

    Raises:
        ValueError: while the model runs: a call has parameters that `AttentionParams` lacks, such as which keys a query
            may see, or other keys than those of its tokens.
    """

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        how: AttentionParams,
        mask: Tensor | None,
        others: Mapping[str, Any],
    ) -> Tensor:
        if unread := unread_tensors(others):
            raise ValueError(f"its attention is also given {', '.join(unread)}")
        tokens = query.shape[2]
        if key.shape[2] != tokens:
            raise ValueError(f"its attention has {key.shape[2]} keys for {tokens} tokens")
        window = how.window or window_in(mask)
        places = torch.arange(tokens, device=query.device)
        distance = places[:, None] - places
        seen = (distance >= 0) & (distance < (tokens if window in (0, UNKNOWN) else window))
        result = attention(query, key, value, seen, how).transpose(1, 2)
        observer(module, query, key, value, result, AttentionParams(how.scaling, window, how.softcap, how.sinks))
        return result

    with answering(attend), masks_with_windows(PAGED):
        yield


def unread_tensors(others: Mapping[str, Any]) -> list[str]:
    """Names of the tensors that a call passes beside `AttentionParams`, but for the tokens' positions."""
    return [name for name, value in others.items() if isinstance(value, Tensor) and name not in _POSITIONS]
