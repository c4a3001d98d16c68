"""Records the attention of a running model. Runs in the engine process, at load.

Most models look their attention up by name, and find ours, which reports its arguments. The others compute it
themselves, and their matrix products are recorded: scores come from a product of queries and keys, and their softmax is
multiplied with values. Between the two there may be a factor, the causal mask, and a bias that grows with each position
(ALiBi, https://arxiv.org/abs/2108.12409).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from ...attention.lookup import PAGED
from ...attention.observation import observed_attention
from ...attention.parameters import AttentionParams
from ...transformers_private import attention_name
from ..comparison import distance, rounded_factor, same
from ..recipe.primitives import NotUnderstoodError

_PRODUCTS: Final = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)
SOFTMAXES: Final = (torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default)
MASKED: Final = -5e3  # scores below are masked; the weakest mask of models is -1e4, in bf16 -9,984
# Largest relative distance of fitted slopes from the exact ones.
_SLOPES_TOLERANCE: Final = 1e-3


@dataclass
class AttentionCall:
    """One layer's attention; tensors are (1, heads, tokens, dim), the result (1, tokens, heads, dim).

    Attributes:
        window: how many tokens a query sees, its own included; 0 for all, `masks.UNKNOWN` where the mask may have one.
        slopes: (heads,) added to a key's score for each position (ALiBi).
        ahead: how many tokens after its own a query sees; None: all.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    result: Tensor
    scale: float
    window: int
    softcap: float
    sinks: Tensor | None
    slopes: Tensor | None = None
    ahead: int | None = 0


@contextmanager
def watch_attention(model: Any, calls: list[AttentionCall]) -> Iterator[None]:
    """Context in which the model runs; after it, `calls` has its attention calls, in order.

    Raises:
        NotUnderstoodError: the model's own attention does something else to scores.
    """
    if attention_name(model.config) == PAGED:

        def note(_: nn.Module, query: Tensor, key: Tensor, value: Tensor, result: Tensor, how: AttentionParams) -> None:
            calls.append(AttentionCall(query, key, value, result, how.scaling, how.window, how.softcap, how.sinks))

        with observed_attention(note):
            yield
        return
    seen = _ProductRecorder()
    # Inference mode and fused attention would hide the products and softmaxes.
    with torch.inference_mode(False), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), seen:
        yield
    for index, operation in enumerate(seen.operations):
        if not isinstance(operation, _Softmax):
            continue
        scores = operation.scores
        if scores.dim() > 2 and scores.shape[-1] == scores.shape[-2]:
            calls.append(_call(seen.operations, index, operation))


@dataclass(frozen=True)
class _Product:
    a: Tensor
    b: Tensor
    result: Tensor


@dataclass(frozen=True)
class _Softmax:
    scores: Tensor
    weights: Tensor


class _ProductRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records batched matrix products and softmaxes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[_Product | _Softmax] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            self.operations.append(_Product(*(each.clone() for each in (*args[-2:], result))))
        elif func in SOFTMAXES:
            self.operations.append(_Softmax(args[0].clone(), result.clone()))
        return result


def _call(operations: list[_Product | _Softmax], index: int, softmax: _Softmax) -> AttentionCall:
    size = softmax.scores.numel()
    products = [(i, step) for i, step in enumerate(operations) if isinstance(step, _Product)]
    scored = next((step for i, step in reversed(products) if i < index and step.result.numel() == size), None)
    mixed = next((step for i, step in products if i > index and same(step.a, softmax.weights)), None)
    if scored is None or mixed is None:
        raise NotUnderstoodError("a softmax that is not between two products")
    tokens = softmax.scores.shape[-1]
    query, key, value = (
        each.reshape(-1, tokens, each.shape[-1]) for each in (scored.a, scored.b.transpose(-1, -2), mixed.b)
    )
    if not len(query) == len(key) == len(value) == size // tokens**2:
        raise NotUnderstoodError("an attention of its own whose heads don't fit")
    scale, slopes = _scale_and_slopes(query.double() @ key.double().transpose(1, 2), softmax.scores, query.shape[-1])
    shared = _heads_per_key(key, value)
    return AttentionCall(
        query=query[None],
        key=key[None, ::shared],
        value=value[None, ::shared],
        result=mixed.result.reshape(len(query), tokens, -1).transpose(0, 1)[None],
        scale=scale,
        window=0,
        softcap=0.0,
        sinks=None,
        slopes=slopes,
    )


def _heads_per_key(key: Tensor, value: Tensor) -> int:
    """How many heads in a row have the same keys and values, which were repeated for the product."""
    heads = len(key)

    def alike(each: Tensor, run: int) -> bool:
        runs = each.view(heads // run, run, *each.shape[1:])
        return bool((runs == runs[:, :1]).all())

    runs = (run for run in range(heads, 0, -1) if heads % run == 0)
    return next(run for run in runs if alike(key, run) and alike(value, run))


def _scale_and_slopes(product: Tensor, scores: Tensor, dim: int) -> tuple[float, Tensor | None]:
    """The factor and the slopes, if any, that make scores from a product, (heads, tokens, tokens) each.

    A softmax ignores what is added to a whole row, so rows are compared relative to their means.
    """
    tokens = product.shape[1]
    scores = scores.reshape(product.shape).double()
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if bool((scores > MASKED).ne(visible).any()):
        raise NotUnderstoodError("a mask that is not causal")

    def centred(x: Tensor) -> Tensor:
        x = x.masked_fill(~visible, 0)
        return (x - x.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)).masked_fill(~visible, 0).flatten(1)

    product, scores = centred(product), centred(scores)
    positions = centred(torch.arange(tokens).double().expand(1, tokens, tokens))

    def growth(x: Tensor) -> Tensor:
        """(heads, 1): how much of x grows with the position."""
        return x @ positions.T / positions.square().sum()

    apart = product - growth(product) * positions
    scale = rounded_factor(float((apart * scores).sum() / apart.square().sum()), (dim**-0.5,))
    if same(scale * product, scores):
        return scale, None
    slopes = _slopes(growth(scores - scale * product)[:, 0].float(), dim)
    if not same(scale * product + slopes[:, None] * positions, scores):
        raise NotUnderstoodError("scores that are more than a product, a factor and a bias by position")
    return scale, slopes


def _slopes(fitted: Tensor, dim: int) -> Tensor:
    """The exact slopes nearest to those fitted: a geometric sequence, in bf16 or not, before or after the factor."""
    usual = alibi_slopes(len(fitted))
    meant = [
        slopes * factor
        for eighths in range(1, 33)
        for exact in (usual ** (eighths / 8),)
        for slopes in (exact, exact.bfloat16().float())
        for factor in (1.0, dim**-0.5)
    ]
    nearest = min(meant, key=lambda slopes: distance(slopes, fitted))
    if distance(nearest, fitted) > _SLOPES_TOLERANCE * float(fitted.norm()):
        raise NotUnderstoodError("a bias by position of an unknown kind")
    return nearest


def alibi_slopes(heads: int) -> Tensor:
    """(heads,) as in the paper: 2 to the power of -8/n, -16/n, ..., where n is the greatest power of two up to `heads`;
    the heads beyond n get every other slope of 2 * n heads."""
    power = 2 ** math.floor(math.log2(heads))
    exponents = [8 * (i + 1) / power for i in range(power)]
    exponents += [4 * (2 * i + 1) / power for i in range(heads - power)]
    return torch.tensor([2**-each for each in exponents])
