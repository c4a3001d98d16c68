"""Finds the sliding windows of a model's own attention. Runs in the engine process, at load.

A window does not show in the few tokens of `run`. If the configuration has one, the model runs on a few more tokens
than that, and the last token's mask shows each layer's window. Paged attention gets it from its call or its mask.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...attention.lookup import PAGED
from ...attention.masks import UNKNOWN, configured_window
from ...transformers_private import attention_name
from ..recipe.primitives import NotUnderstoodError
from .attention import MASKED, SOFTMAXES, AttentionCall

_BEYOND: Final = 5  # tokens beyond the window
# Scores take the square of this many numbers for every head. GPT-Neo's window is 256.
_LONGEST: Final = 1024


def watch_windows(model: Any, calls: list[AttentionCall], max_positions: int) -> None:
    """Set the window of the calls of a model's own attention, and of those whose mask may have one.

    Raises:
        NotUnderstoodError: the mask is not that of a window, or the window is too long to be tried.
    """
    window = configured_window(model)
    if not 0 < window < max_positions:
        for call in calls:
            call.window = max(call.window, 0)
        return
    if attention_name(model.config) == PAGED:
        if any(call.window == UNKNOWN for call in calls):
            raise NotUnderstoodError("a mask of its own, and a window in the configuration")
        return
    if window > _LONGEST:
        raise NotUnderstoodError(f"an attention of its own, with a window of {window}")
    tokens = min(window + _BEYOND, max_positions)
    ids = torch.arange(tokens)[None] % len(model.get_input_embeddings().weight)
    seen = _LastRows(tokens)
    with torch.inference_mode(False), torch.no_grad(), seen:
        model(input_ids=ids, use_cache=False)
    if len(seen.rows) != len(calls):
        raise NotUnderstoodError("attention does not run once in each layer")
    for call, row in zip(calls, seen.rows, strict=True):
        sees = int(row[0].sum())
        if not bool(row[:, tokens - sees :].all()) or int(row.sum()) != sees * len(row):
            raise NotUnderstoodError("a mask that is not of a window")
        call.window = sees if sees < tokens else 0


class _LastRows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which tokens the last of `tokens` sees in each softmax, (heads, tokens)."""

    def __init__(self, tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tokens = tokens
        self.rows: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SOFTMAXES and args[0].shape[-2:] == (self._tokens, self._tokens):
            self.rows.append((args[0][..., -1, :] > MASKED).reshape(-1, self._tokens))
        return func(*args, **(kwargs or {}))
