"""Finds which tokens of its text each layer of an encoder looks at. Runs in the engine process, at load.

A few tokens don't show that a layer sees no further than 64 tokens. The function that makes a model's mask does, which
says of any query and any key whether the one sees the other. So while an encoder is watched, the masks that it asks
transformers for are not masks: each number in them tells which reach its function has, however the model cuts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from ..transformers_private import remove_mask_function
from .dense import attention
from .lookup import PAGED, answering
from .observation import unread_tensors
from .parameters import AttentionParams

_TOLD: Final = torch.int64  # no mask that is one has numbers of this type


class Reach(NamedTuple):
    """How far a token looks.

    Attributes:
        behind: how many tokens it sees up to itself; 0: all.
        ahead: how many tokens it sees after itself; None: all.
    """

    behind: int
    ahead: int | None


#: (module, query, key, value, result, parameters, reach)
ReachObserver = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor, AttentionParams, Reach], None]


@contextmanager
def observed_reach(observer: ReachObserver, longest: int) -> Iterator[None]:
    """Context in which an encoder with `PAGED` attention runs on one text, and `observer` sees all calls.

    Args:
        longest: most tokens of a text.

    Raises:
        ValueError: by the model's run: a mask is of another kind, or a call says more than `AttentionParams`.
    """
    from transformers import AttentionMaskInterface

    reaches: list[Reach] = []

    def tell(
        *,
        batch_size: int,
        q_length: int,
        kv_length: int,
        mask_function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
        device: torch.device,
        **_: Any,
    ) -> Tensor:
        reaches.append(reach_of(mask_function, longest))
        return torch.full((batch_size, 1, q_length, kv_length), len(reaches) - 1, dtype=_TOLD, device=device)

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
        if mask is None or mask.dtype != _TOLD:
            raise ValueError("its attention has a mask of its own")
        reach = reaches[int(mask.flatten()[0])]
        result = attention(query, key, value, seen_by(reach, query.shape[2]), how).transpose(1, 2)
        observer(module, query, key, value, result, how, reach)
        return result

    AttentionMaskInterface.register(PAGED, tell)
    try:
        with answering(attend):
            yield
    finally:
        remove_mask_function(PAGED)


def reach_of(sees: Callable[[Tensor, Tensor, Tensor, Tensor], Any], longest: int) -> Reach:
    """The reach of a mask's function in texts of up to `longest` tokens.

    Args:
        sees: says whether a query sees a key, given indices of the batch, the head, the query and the key.

    Raises:
        ValueError: it is not a range of tokens around the query's own.
    """
    zero, keys = torch.tensor(0), torch.arange(longest)

    def seen(query: int) -> Tensor:
        return torch.as_tensor(sees(zero, zero, torch.tensor(query), keys)).expand(longest)

    behind, ahead = int(seen(longest - 1).sum()), int(seen(0).sum()) - 1
    reach = Reach(behind if behind < longest else 0, ahead if ahead < longest - 1 else None)
    for query in {0, longest // 3, longest // 2, longest - 1}:
        if not torch.equal(seen(query), seen_by(reach, longest, query)[0]):
            raise ValueError("its mask is not a range around each token")
    return reach


def seen_by(reach: Reach, tokens: int, query: int | None = None) -> Tensor:
    """(queries, tokens) true where a query sees a token: all queries, or that one only."""
    places = torch.arange(tokens)
    queries = places if query is None else places[query : query + 1]
    further = places - queries[:, None]
    seen = further <= (tokens if reach.ahead is None else reach.ahead)
    return seen & (further > -(reach.behind or tokens))
