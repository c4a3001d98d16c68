"""Copies of a model in fp32, with other numbers: random ones, or its own exactly. Runs in the engine process, at load.

Trained weights hide what a model computes. A few tokens carry numbers thousands of times greater than all others
("Massive activations in large language models", https://arxiv.org/abs/2402.17762), so that a sum looks like one of its
terms, and in bf16 is. So a model's structure is read from a copy of its modules with random weights: there, two
computations give equal numbers only if they are the same function, and fp32 has six digits to show it.

    copy = copy_model(model, RandomNumbers())
    copy.model(input_ids=torch.tensor([[3, 1, 2]]))  # tokens are rows of the copy's small table
    copy.original(module)                            # the model's own module that a module of the copy stands for
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from ...checkpoints.dequantizing_linear import DequantizingEmbedding, DequantizingLinear
from ...checkpoints.expert_stacks import ExpertStack, stacks_of
from ...checkpoints.weights import Weight, dense

# A table by token has about as many rows as the vocabulary; one by position has fewer.
_SHARE_OF_VOCABULARY: Final = 0.9
_BLOCK: Final = 1_048_573  # random numbers before they repeat; prime, so that no row of a matrix is another's
_MOST_NUMBERS: Final = 1 << 26  # numbers of one weight, beyond which its rows overlap
_OVERLAP: Final = 1009  # numbers from one such row to the next
_ROWS: Final = 64  # of a random copy's tables by token


class Numbers(Protocol):
    """The numbers of a copy."""

    #: The rows of tables by token that a copy has.
    tokens: Tensor

    def __call__(self, weight: Weight | ExpertStack, kind: str) -> Tensor:
        """fp32 numbers for a weight, in its shape; its `kind` is "table", "matrix" or "vector"."""
        ...


class RandomNumbers:
    """Well-conditioned numbers: products have the size of their inputs, factors are about 1.

    Matrices are views of one long row of numbers, so that a copy takes little memory, whatever the model's size.
    """

    def __init__(self) -> None:
        self.tokens = torch.arange(_ROWS)
        self._random = torch.Generator().manual_seed(0)
        self._block = torch.randn(_BLOCK, generator=self._random)
        self._scaled: dict[float, Tensor] = {}
        self._rows: dict[int, int] = {}  # by width: how many are taken

    def __call__(self, weight: Weight | ExpertStack, kind: str) -> Tensor:
        shape = tuple(weight.shape)
        if kind == "vector":
            return torch.rand(shape, generator=self._random) + 0.5
        *outer, width = shape
        rows = math.prod(outer)
        apart = width if rows * width <= _MOST_NUMBERS else min(width, _OVERLAP)
        scale = 1.0 if kind == "table" else width**-0.5
        first = self._rows.get(width, 0)
        self._rows[width] = first + rows
        start = first * width % _BLOCK
        strides, step = [1], apart
        for size in reversed(outer):
            strides.insert(0, step)
            step *= size
        return self._repeated(scale, start + (rows - 1) * apart + width).as_strided(shape, strides, start)

    def _repeated(self, scale: float, size: int) -> Tensor:
        known = self._scaled.get(scale)
        if known is None or len(known) < size:
            self._scaled[scale] = known = (self._block * scale).repeat(-(-size // _BLOCK))
        return known


class OwnNumbers:
    """The model's own numbers, codes dequantized.

    Args:
        tokens: rows of tables by token that the copy has.
    """

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __call__(self, weight: Weight | ExpertStack, kind: str) -> Tensor:
        return (weight.dense() if isinstance(weight, ExpertStack) else dense(weight)).float()


@dataclass(frozen=True)
class Copy:
    """A copy of a model, or of a part of one.

    Attributes:
        tokens: the rows of the model's tables by token that the copy's have, in this order.
    """

    model: Any
    tokens: Tensor
    _originals: dict[int, nn.Module]

    def original(self, module: nn.Module) -> nn.Module:
        """The model's own module that one of the copy's stands for."""
        return self._originals[id(module)]


def is_by_token(table: Weight, vocabulary: int) -> bool:
    """Whether a table (rows, columns) or a vector (rows,) has a row for each token."""
    return len(table) >= _SHARE_OF_VOCABULARY * vocabulary


@torch.no_grad()
def copy_model(model: nn.Module, numbers: Numbers, but: Collection[nn.Module] = ()) -> Copy:
    """Copy a model's modules, with other numbers for its weights, which are never changed.

    Buffers keep their numbers, in fp32. Linears of codes become plain ones, stacks of experts plain weights.

    Args:
        but: modules that the copy shares with the model.
    """
    shared = {id(part) for module in but for part in module.modules()}
    head, vocabulary = _head(model)
    tables = _tables(model, head, vocabulary)
    memo: dict[int, Any] = {id(module): module for module in but}
    for module in model.modules():
        if id(module) in shared:
            continue
        if isinstance(module, DequantizingLinear):
            by_token = module is head and is_by_token(module.weight, vocabulary)
            memo[id(module)] = _plain(module, numbers, by_token=by_token)
            continue
        if isinstance(module, DequantizingEmbedding):
            table = module.weight[numbers.tokens.clamp(max=len(module.weight) - 1)]
            memo[id(module)] = module.with_table(numbers(table, "table"))
            continue
        for each in module.parameters(recurse=False):
            if id(each) not in memo:
                memo[id(each)] = nn.Parameter(_made(each, numbers, tables), requires_grad=False)
        for buffer in module.buffers(recurse=False):
            memo[id(buffer)] = buffer.float() if buffer.is_floating_point() else buffer
        memo.update((id(stack), numbers(stack, "matrix")) for stack in stacks_of(module).values())
    copied = copy.deepcopy(model, memo)
    pairs = zip(copied.modules(), model.modules(), strict=True)
    return Copy(copied, numbers.tokens, {id(one): other for one, other in pairs})


def _head(model: Any) -> tuple[nn.Module | None, int]:
    """A model's lm_head, and the rows of its table of tokens; (None, 0) of a model that says neither."""
    if not hasattr(model, "get_input_embeddings"):
        return None, 0
    return model.get_output_embeddings(), len(model.get_input_embeddings().weight)


def _tables(model: nn.Module, head: nn.Module | None, vocabulary: int) -> set[int]:
    """Ids of the parameters that have a row for each token: of embeddings, and of the lm_head."""
    if not vocabulary:
        return set()
    holders = [module for module in model.modules() if isinstance(module, nn.Embedding) or module is head]
    return {
        id(each) for module in holders for each in module.parameters(recurse=False) if is_by_token(each, vocabulary)
    }


def _made(parameter: nn.Parameter, numbers: Numbers, tables: set[int]) -> Tensor:
    data = parameter.data
    if id(parameter) in tables:
        return numbers(data[numbers.tokens.clamp(max=len(data) - 1)], "table" if data.dim() > 1 else "vector")
    return numbers(data, "vector" if data.dim() < 2 else "matrix")


def _plain(module: DequantizingLinear, numbers: Numbers, *, by_token: bool) -> nn.Linear:
    rows = numbers.tokens.clamp(max=module.out_features - 1)
    made = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
    weight = numbers(module.weight[rows], "table") if by_token else numbers(module.weight, "matrix")
    made.weight = nn.Parameter(weight, requires_grad=False)
    if module.bias is not None:
        bias = module.bias.data[rows] if by_token else module.bias.data
        made.bias = nn.Parameter(numbers(bias, "vector"), requires_grad=False)
    return made.eval()


@contextmanager
def passed_through(layers: Sequence[nn.Module], without: Collection[nn.Module]) -> Iterator[None]:
    """Context in which some layers return the residual stream as they are given it, in the form that the first does.

    Args:
        layers: all layers, in the order in which they run.
    """
    rest: list[Any] = []

    def note(_: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        rest[:] = [made[1:]] if isinstance(made, (tuple, list)) else []

    def forward(hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return (hidden_states, *rest[0]) if rest else hidden_states

    hook = layers[0].register_forward_hook(note)
    for layer in without:
        layer.forward = forward
    try:
        yield
    finally:
        hook.remove()
        for layer in without:
            del layer.forward
