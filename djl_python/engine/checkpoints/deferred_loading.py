"""Makes transformers leave weights in the checkpoint's files. Runs in the engine process, at load.

By itself transformers loads quantized weights with the libraries that made them, and copies weights of experts into one
tensor. Here the model that it is about to load gets linears and stacks that read their weights themselves
(`dequantizing_linear`, `expert_stacks`); transformers loads the rest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from ...core.errors import ModelLoadError
from ..transformers_private import WeightConversions, WeightConverter, by_number, ignore_when_loading, untie
from .dequantizing_linear import DequantizingEmbedding, DequantizingLinear, LinearSource, QuantizedWeight
from .expert_stacks import ExpertStack, ExpertWeight
from .linears import child_modules
from .preparing import preparing_config
from .stored.gguf_checkpoint import GgufCheckpoint
from .stored.plain_checkpoint import PlainCheckpoint
from .stored.quantized_checkpoint import METHODS, QuantizedCheckpoint
from .stored.unpacking import PACKED_FORMATS

# The tensors that transformers is not to load.
_CODES: Final = rf"\.({'|'.join({name for layout in PACKED_FORMATS.values() for name in layout.names})})$"


Checkpoint = QuantizedCheckpoint | PlainCheckpoint | GgufCheckpoint
_Coded = QuantizedCheckpoint | GgufCheckpoint


def deferring_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """A `quantization_config` that makes transformers leave the checkpoint's own linears in its files."""

    def replace(model: Any) -> None:
        replacement = _Replacement(checkpoint, model)
        replacement.replace()
        ignore_when_loading(model, replacement.ignored)

    return preparing_config(replace, None if isinstance(checkpoint, PlainCheckpoint) else checkpoint.method)


@torch.inference_mode()
def unpack_linears_(model: nn.Module, device: torch.device) -> int:
    """Replace what still dequantizes, linears and tables of tokens, by dense modules; returns how many linears."""
    for parent, name, module in child_modules(model):
        if isinstance(module, DequantizingEmbedding):
            setattr(parent, name, module.with_table(module.weight.dense().to(device)))
    left = [place for place in child_modules(model) if isinstance(place[2], DequantizingLinear)]
    for parent, name, module in left:
        assert isinstance(module, DequantizingLinear)
        linear = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(module.dense().to(device), requires_grad=False)
        linear.register_parameter("bias", module.bias)
        setattr(parent, name, linear)
    return len(left)


@dataclass
class _Stack:
    """Linears of all experts, by pattern of their names, which transformers would make one tensor of."""

    converter: WeightConverter
    linears: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def experts(self, count: int) -> list[list[str]]:
        """Names in the checkpoint of each expert's linears; empty if transformers does more than stack them."""
        columns = [by_number(self.linears[pattern]) for pattern in self.converter.patterns]
        if not self.converter.stacks_experts or any(len(column) != count for column in columns):
            return []
        return [list(names) for names in zip(*columns, strict=True)]


class _Replacement:
    """Replaces linears and stacked weights of a model that isn't loaded yet by those that read the checkpoint.

    Attributes:
        ignored: patterns of the tensors' names that transformers need not look for.
    """

    def __init__(self, checkpoint: Checkpoint, model: Any) -> None:
        self._checkpoint, self._model = checkpoint, model
        self._weights = model.state_dict()
        self.ignored = {_CODES} if isinstance(checkpoint, QuantizedCheckpoint) else set()

    def replace(self) -> None:
        """Replace the modules for which the checkpoint has quantized linears.

        Raises:
            ModelLoadError: transformers converts a weight in a way that codes can't be converted.
        """
        conversions, stacks = WeightConversions(self._model), dict[str, _Stack]()
        for linear in self._checkpoint.linears:
            name, pattern, converter = conversions.target_of(f"{linear}.weight")
            if pattern is not None and converter is not None:
                stacks.setdefault(name, _Stack(converter)).linears[pattern].append(linear)
            elif name in self._weights and not isinstance(self._checkpoint, PlainCheckpoint):
                self._replace_weight(self._checkpoint, name.removesuffix(".weight"), linear)
        replaced = [self._replace_stack(name, stack) for name, stack in stacks.items() if name in self._weights]
        if any(replaced):
            self._model.set_experts_implementation("eager")  # which asks for one expert's weights at a time

    def _replace_weight(self, checkpoint: _Coded, target: str, linear: str) -> None:
        module, weight = self._model.get_submodule(target), self._weights[f"{target}.weight"]
        if isinstance(module, nn.Embedding):
            self._replace_table(checkpoint, target, module, weight.dtype)
            return
        n, k = weight.shape if isinstance(module, nn.Linear) else weight.shape[::-1]  # GPT-2's are transposed
        source = _source(checkpoint, linear, k)
        self._model.set_submodule(target, DequantizingLinear((n, k), source, module.bias, weight.dtype))

    def _replace_table(self, checkpoint: _Coded, target: str, module: nn.Embedding, dtype: torch.dtype) -> None:
        """Replace a table of tokens, and the lm_head with it if that has the same weight."""
        source = _source(checkpoint, target, module.embedding_dim)
        shape = module.num_embeddings, module.embedding_dim
        self._model.set_submodule(target, DequantizingEmbedding(module, source, dtype))
        head = self._model.get_output_embeddings()
        if head is not None and self._model.config.tie_word_embeddings:
            self._model.set_output_embeddings(DequantizingLinear(shape, source, head.bias, dtype))
            untie(self._model)

    def _replace_stack(self, name: str, stack: _Stack) -> bool:
        weight = self._weights[name]
        experts = stack.experts(len(weight))
        if not experts and isinstance(self._checkpoint, PlainCheckpoint):
            return False  # transformers makes it
        if not experts:
            method, kind = self._checkpoint.method, type(self._model).__name__
            libraries = " and ".join(METHODS.get(method or "", ()))
            raise ModelLoadError(f"{method} of {kind} is read with {libraries} only: how {name} is made of weights")
        holder, _, attribute = name.rpartition(".")
        module = self._model.get_submodule(holder)
        delattr(module, attribute)
        of_experts = (self._of_expert(linears, tuple(weight.shape[1:]), weight.dtype) for linears in experts)
        setattr(module, attribute, ExpertStack(tuple(of_experts), weight.dtype))
        self.ignored.add(f"{re.escape(name)}$")
        return True

    def _of_expert(self, linears: list[str], shape: tuple[int, int], dtype: torch.dtype) -> ExpertWeight:
        if isinstance(self._checkpoint, PlainCheckpoint):
            return self._checkpoint.weight(linears, shape, dtype)
        each = shape[0] // len(linears), shape[1]
        return QuantizedWeight(
            tuple(
                DequantizingLinear(each, _source(self._checkpoint, linear, each[1]), None, dtype) for linear in linears
            )
        )


def _source(checkpoint: _Coded, linear: str, inputs: int) -> LinearSource:
    if isinstance(checkpoint, GgufCheckpoint):
        return checkpoint.source(linear)
    return checkpoint.source(linear, inputs)
