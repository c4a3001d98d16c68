"""Watches how far an attention of a model's own looks back. Runs in the engine process, once.

A window does not show in the few tokens of `watch`. Where the configuration speaks of one, a few more tokens than it
has are run, and the last of them shows for each layer which it sees.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..attention import PAGED
from .mapped import in_passing
from .recipe_parts import NotUnderstoodError
from .watch_attention import MASKED, SOFTMAXES, Call

_NAMES: Final = ("sliding_window", "window_size", "attention_window")
_MORE: Final = 5
# Scores take the square of it for every head. GPT-Neo's is 256.
_LONGEST: Final = 1024


def watch_windows(model: Any, calls: list[Call], max_positions: int) -> None:
    """Give the calls of an attention of the model's own their windows.

    Raises:
        NotUnderstoodError: what is masked is not what lies before a window; or it may be, and is too long to be seen.
    """
    window = max(getattr(model.config, name, None) or 0 for name in _NAMES)
    if model.config._attn_implementation == PAGED or not 0 < window < max_positions:
        return
    if window > _LONGEST:
        raise NotUnderstoodError(f"an attention of its own, with a window of {window}")
    tokens = min(window + _MORE, max_positions)
    ids = torch.arange(tokens)[None] % model.get_input_embeddings().weight.shape[0]
    seen = _LastRows(tokens)
    with torch.inference_mode(False), torch.no_grad(), in_passing(model), seen:
        model(input_ids=ids, use_cache=False)
    if len(seen.rows) != len(calls):
        raise NotUnderstoodError("attention does not run once in each layer")
    for call, row in zip(calls, seen.rows, strict=True):
        sees = int(row[0].sum())
        if not bool(row[:, tokens - sees :].all()) or int(row.sum()) != sees * len(row):
            raise NotUnderstoodError("a mask that is not of a window")
        call.window = sees if sees < tokens else 0


class _LastRows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What the last of so many tokens sees in each softmax, (heads, tokens)."""

    def __init__(self, tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tokens = tokens
        self.rows: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SOFTMAXES and args[0].shape[-2:] == (self._tokens, self._tokens):
            self.rows.append((args[0][..., -1, :] > MASKED).reshape(-1, self._tokens))
        return func(*args, **(kwargs or {}))
