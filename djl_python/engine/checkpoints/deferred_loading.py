"""Makes transformers leave weights in the checkpoint's files. Runs in the engine process, once.

By itself transformers loads codes with the libraries that made them, and copies weights of experts into one tensor.
Here the model that it is about to load gets linears and stacks that read their weights themselves (`coded_linear`,
`expert_stacks`); transformers loads the rest.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from ...core.errors import ModelLoadError
from .expert_stacks import ExpertStack, ExpertWeight
from .module_tree import child_modules
from .plain_checkpoint import PlainCheckpoint
from .quantized_checkpoint import METHODS, CodedCheckpoint
from .quantized_linear import CodedLinear, CodedWeight
from .unpacking import LAYOUTS

_NAME: Final = "codes_as_stored"  # this quantization method's name in transformers
# The tensors that transformers is not to load.
_CODES: Final = rf"\.({'|'.join({name for layout in LAYOUTS.values() for name in layout.names})})$"


Checkpoint = CodedCheckpoint | PlainCheckpoint


def as_transformers_reads(checkpoint: Checkpoint) -> dict[str, Any]:
    """A `quantization_config` that makes transformers load the checkpoint as described above."""
    _register()
    return {"quant_method": _NAME, "checkpoint": checkpoint}


@torch.inference_mode()
def unpack_linears_(model: nn.Module, device: torch.device) -> int:
    """Replace the coded linears that are left by dense ones; returns how many."""
    left = [place for place in child_modules(model) if isinstance(place[2], CodedLinear)]
    for parent, name, module in left:
        assert isinstance(module, CodedLinear)
        linear = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(module.dense().to(device), requires_grad=False)
        linear.register_parameter("bias", module.bias)
        setattr(parent, name, linear)
    return len(left)


@dataclass
class _Stack:
    """Linears of all experts, by pattern, which transformers would make one tensor of."""

    converter: Any
    linears: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def experts(self, count: int) -> list[list[str]]:
        """Names in the checkpoint of each expert's linears; empty if transformers does more than stack them."""
        from transformers.core_model_loading import dot_natural_key

        operations = [(type(each).__name__, each.dim) for each in self.converter.operations if hasattr(each, "dim")]
        whole = len(operations) == len(self.converter.operations) and operations in _STACKING
        columns = [sorted(self.linears[pattern], key=dot_natural_key) for pattern in self.converter.source_patterns]
        if not whole or any(len(column) != count for column in columns):
            return []
        return [list(names) for names in zip(*columns, strict=True)]


# transformers' operations that lay weights of experts out as (experts, out, in), or two of them joined by rows.
_STACKING: Final = ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)])


class _Placing:
    """Puts coded linears and stacks into a model that isn't loaded yet.

    Attributes:
        left: patterns of the names that transformers need not look for.
    """

    def __init__(self, checkpoint: Checkpoint, model: Any) -> None:
        self._checkpoint, self._model = checkpoint, model
        self._weights = model.state_dict()
        self.left = {_CODES} if isinstance(checkpoint, CodedCheckpoint) else set()

    def place(self) -> None:
        """Put the checkpoint's linears and stacks into the model.

        Raises:
            ModelLoadError: transformers converts a weight in a way that codes can't be converted.
        """
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, rename_source_key

        changes = get_model_conversion_mapping(self._model)
        converters = [each for each in changes if isinstance(each, WeightConverter)]
        renamings = [each for each in changes if not isinstance(each, WeightConverter)]
        by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        prefix, stacks = self._model.base_model_prefix, dict[str, _Stack]()
        for stored in self._checkpoint.linears:
            name, pattern = rename_source_key(f"{stored}.weight", renamings, converters, prefix, self._weights)
            if pattern is not None:
                stacks.setdefault(name, _Stack(by_pattern[pattern])).linears[pattern].append(stored)
            elif name in self._weights and isinstance(self._checkpoint, CodedCheckpoint):
                self._place_linear(self._checkpoint, name.removesuffix(".weight"), stored)
        placed = [self._place_stack(name, stack) for name, stack in stacks.items() if name in self._weights]
        if any(placed):
            self._model.set_experts_implementation("eager")  # which asks for one expert's weights at a time

    def _place_linear(self, checkpoint: CodedCheckpoint, place: str, stored: str) -> None:
        module, weight = self._model.get_submodule(place), self._weights[f"{place}.weight"]
        n, k = weight.shape if isinstance(module, nn.Linear) else weight.shape[::-1]  # GPT-2's are transposed
        self._model.set_submodule(place, CodedLinear((n, k), checkpoint, stored, module.bias, weight.dtype))

    def _place_stack(self, name: str, stack: _Stack) -> bool:
        weight = self._weights[name]
        experts = stack.experts(len(weight))
        if not experts and isinstance(self._checkpoint, PlainCheckpoint):
            return False  # transformers makes it
        if not experts:
            assert isinstance(self._checkpoint, CodedCheckpoint)
            method, kind = self._checkpoint.method, type(self._model).__name__
            libraries = " and ".join(METHODS[method])
            raise ModelLoadError(f"{method} of {kind} is read with {libraries} only: how {name} is made of weights")
        place, _, attribute = name.rpartition(".")
        module = self._model.get_submodule(place)
        delattr(module, attribute)
        of_experts = (self._of_expert(linears, tuple(weight.shape[1:]), weight.dtype) for linears in experts)
        setattr(module, attribute, ExpertStack(tuple(of_experts), weight.dtype))
        self.left.add(f"{re.escape(name)}$")
        return True

    def _of_expert(self, linears: list[str], shape: tuple[int, int], dtype: torch.dtype) -> ExpertWeight:
        if isinstance(self._checkpoint, PlainCheckpoint):
            return self._checkpoint.weight(linears, shape, dtype)
        each = shape[0] // len(linears), shape[1]
        return CodedWeight(tuple(CodedLinear(each, self._checkpoint, linear, None, dtype) for linear in linears))


@functools.cache
def _register() -> None:
    """Tell transformers how to load a `Checkpoint`."""
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    @register_quantization_config(_NAME)
    class Config(QuantizationConfigMixin):  # type: ignore[misc]
        def __init__(self, checkpoint: Checkpoint, **_: Any) -> None:
            self.quant_method = _NAME
            self.checkpoint = checkpoint
            self.dequantize = isinstance(checkpoint, PlainCheckpoint)  # the model is not to count as a quantized one

        def to_dict(self) -> dict[str, Any]:
            return {"quant_method": self.checkpoint.method}  # which is what a configuration says

    @register_quantizer(_NAME)
    class Quantizer(HfQuantizer):  # type: ignore[misc]
        is_trainable = False

        def is_serializable(self) -> bool:
            return False

        def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
            placing = _Placing(self.quantization_config.checkpoint, model)
            placing.place()
            ignored = model._keys_to_ignore_on_load_unexpected
            kind = list if ignored is None else type(ignored)  # transformers adds to it: older versions a list
            model._keys_to_ignore_on_load_unexpected = kind((*(ignored or ()), *placing.left))
            return model
