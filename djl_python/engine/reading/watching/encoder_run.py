"""Runs a random copy of an encoder on a few tokens, and records its calls. Runs in the engine process, at load.

As `run` does for decoders, but positions are the model's own, which may begin anywhere, tokens have types where the
model takes them, and each layer's attention tells how far it looks.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...attention.lookup import PAGED, register, set_attention
from ...attention.parameters import AttentionParams
from ...attention.reach import Reach, observed_reach
from .attention import AttentionCall
from .copies import Copy
from .run import TOKENS, WatchedRun, recorded

#: The ids of the text; none is a usual id of padding.
IDS: Final = (*(11 * i + 5 for i in range(TOKENS - 1)), 8)


@dataclass
class WatchedEncoder:
    """A recorded run: `seen` has no logits.

    Attributes:
        hidden: the last hidden states, (1, tokens, width) fp32.
        types: (tokens,) the types that the tokens were given; None: the model takes none.
    """

    seen: WatchedRun
    hidden: Tensor
    types: list[int] | None


def watch_encoder(copy: Copy, longest: int) -> WatchedEncoder:
    """Run the copy on `IDS`.

    Args:
        longest: most tokens of a text.

    Raises:
        NotUnderstoodError: it has no list of layers.
        ValueError: its attention is not looked up by name, or has a mask of an unknown kind.
    """
    seen, types = WatchedRun(first_position=0), types_of(copy.model, TOKENS)

    def note(
        _: nn.Module, query: Tensor, key: Tensor, value: Tensor, result: Tensor, how: AttentionParams, reach: Reach
    ) -> None:
        seen.attention_calls.append(
            AttentionCall(
                query, key, value, result, how.scaling, reach.behind, how.softcap, how.sinks, ahead=reach.ahead
            )
        )

    register()
    set_attention(copy.model, PAGED)
    with recorded(copy, seen), observed_reach(note, longest):
        hidden = run_encoder(copy.model, IDS, types)
    return WatchedEncoder(seen, hidden, types)


def types_of(model: Any, tokens: int) -> list[int] | None:
    """Types for so many tokens, of both kinds, if the model takes types and has two of them."""
    if "token_type_ids" not in inspect.signature(model.forward).parameters:
        return None
    return [i % 2 for i in range(tokens)] if getattr(model.config, "type_vocab_size", 0) > 1 else None


def run_encoder(model: Any, ids: Sequence[int], types: Sequence[int] | None = None) -> Tensor:
    """The hidden states of a text, (1, tokens, width) fp32."""
    given: dict[str, Any] = {"input_ids": torch.tensor([list(ids)])}
    if types is not None:
        given["token_type_ids"] = torch.tensor([list(types)])
    if hasattr(model.config, "use_cache"):
        given["use_cache"] = False
    hidden: Tensor = model(**given).last_hidden_state.float()
    return hidden
