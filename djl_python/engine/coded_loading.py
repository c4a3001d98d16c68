"""Has transformers load checkpoints of codes without the libraries that made them. Runs in the engine process, once.

By itself it loads them with those, which bring kernels of their own. Here it is given a model whose linears hold a
checkpoint's tensors as they are (`coded_linear`, `coded_experts`); weights that it makes something else of than a stack
of experts are unpacked on the way.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from .coded_checkpoint import CodedCheckpoint
from .coded_experts import CodedStack, stacks_of, unpack_experts_
from .coded_linear import CodedLinear, CodedWeight
from .native.parts import places_in
from .stored_codes import LAYOUTS

_NAME: Final = "codes_as_stored"  # what transformers knows this by


def as_transformers_reads(checkpoint: CodedCheckpoint) -> dict[str, Any]:
    """A `quantization_config` that has it load the checkpoint as said above."""
    _register()
    return {"quant_method": _NAME, "checkpoint": checkpoint}


@torch.inference_mode()
def unpack_(model: nn.Module) -> int:
    """Replace what has codes, and is left, by what has numbers; how many linears."""
    unpack_experts_(model)
    left = [place for place in places_in(model) if isinstance(place[2], CodedLinear)]
    for parent, name, module in left:
        assert isinstance(module, CodedLinear)
        setattr(parent, name, module.as_dense_linear())
    return len(left)


@dataclass
class _Stack:
    """What transformers makes one tensor of: linears of all experts, by pattern."""

    converter: Any
    linears: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def experts(self, count: int) -> list[list[str]]:
        """Names in the checkpoint of each expert's linears; none, where it does anything else with them."""
        operations = [(type(each).__name__, each.dim) for each in self.converter.operations if hasattr(each, "dim")]
        whole = len(operations) == len(self.converter.operations) and operations in _STACKING
        columns = [sorted(self.linears[pattern], key=_natural) for pattern in self.converter.source_patterns]
        if not whole or any(len(column) != count for column in columns):
            return []
        return [list(names) for names in zip(*columns, strict=True)]


# What transformers does to lay weights of experts out as (experts, out, in), perhaps two of them below each other.
_STACKING: Final = ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)])


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


class _Placing:
    """Puts coded linears into a model that isn't loaded yet, where its checkpoint has codes."""

    def __init__(self, checkpoint: CodedCheckpoint, model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter

        self._checkpoint, self._model = checkpoint, model
        self._weights = model.state_dict()
        changes = get_model_conversion_mapping(model)
        self._converters = [each for each in changes if isinstance(each, WeightConverter)]
        self._renamings = [each for each in changes if not isinstance(each, WeightConverter)]

    def place(self) -> bool:
        """Whether that was possible everywhere: else transformers has to be given numbers for its stacks."""
        stacks: dict[str, _Stack] = {}
        by_pattern = {pattern: each for each in self._converters for pattern in each.source_patterns}
        for stored in self._checkpoint.linears:
            name, pattern = self._renamed(f"{stored}.weight", self._converters)
            if pattern is not None:
                stacks.setdefault(name, _Stack(by_pattern[pattern])).linears[pattern].append(stored)
            elif name in self._weights:
                self._place_linear(name.removesuffix(".weight"), stored)
        found = {
            name: stack.experts(len(self._weights[name])) for name, stack in stacks.items() if name in self._weights
        }
        places = {name: [self._places_below(name, names) for names in experts] for name, experts in found.items()}
        if len(found) < len(stacks) or not all(each and all(map(all, each)) for each in places.values()):
            return False
        for name, experts in found.items():
            self._place_stack(name, experts, places[name])
        return True

    def _renamed(self, key: str, converters: list[Any]) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key

        prefix = self._model.base_model_prefix
        renamed: tuple[str, str | None] = rename_source_key(key, self._renamings, converters, prefix, self._weights)
        return renamed

    def _places_below(self, name: str, stored: list[str]) -> list[str]:
        """Where an expert's linears are loaded from, as modules below the one that has the stack; "" if not there."""
        parent = name.rpartition(".")[0] + "."
        prefix = f"{self._model.base_model_prefix}."
        renamed = [self._renamed(each, [])[0] for each in stored]
        places = [each if each.startswith(parent) else prefix + each for each in renamed]
        return [each if each.startswith(parent) else "" for each in places]

    def _place_linear(self, place: str, stored: str) -> None:
        module, weight = self._model.get_submodule(place), self._weights[f"{place}.weight"]
        n, k = weight.shape if isinstance(module, nn.Linear) else weight.shape[::-1]  # GPT-2's are transposed
        self._set(
            place, CodedLinear((n, k), self._checkpoint, self._checkpoint.linears[stored], module.bias, weight.dtype)
        )

    def _place_stack(self, name: str, experts: list[list[str]], places: list[list[str]]) -> None:
        parent, _, attribute = name.rpartition(".")
        weight = self._weights[name]
        n, k = weight.shape[1] // len(experts[0]), weight.shape[2]
        stacked = []
        for stored, below in zip(experts, places, strict=True):
            tensors = [self._checkpoint.linears[each] for each in stored]
            linears = [CodedLinear((n, k), self._checkpoint, each, None, weight.dtype) for each in tensors]
            for place, linear in zip(below, linears, strict=True):
                self._set(place, linear)
            stacked.append(CodedWeight(tuple(linears)))
        holder = self._model.get_submodule(parent)
        delattr(holder, attribute)
        setattr(holder, attribute, CodedStack(tuple(stacked)))

    def _set(self, place: str, linear: CodedLinear) -> None:
        module = self._model
        *parents, name = place.split(".")
        for part in parents:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        module.add_module(name, linear)


@functools.cache
def _register() -> None:
    """Tell transformers how to load a `CodedCheckpoint`."""
    from transformers.core_model_loading import ConversionOps
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    @register_quantization_config(_NAME)
    class Config(QuantizationConfigMixin):  # type: ignore[misc]
        def __init__(self, checkpoint: CodedCheckpoint, **_: Any) -> None:
            self.quant_method = _NAME
            self.checkpoint = checkpoint

        def to_dict(self) -> dict[str, Any]:
            return {"quant_method": self.checkpoint.method}

    class Unpack(ConversionOps):  # type: ignore[misc]
        """Turns lists of tensors, one for each expert, into lists of weights; those of numbers stay."""

        def __init__(self, hf_quantizer: Any) -> None:
            self.hf_quantizer = hf_quantizer

        def convert(self, input_dict: dict[str, Any], *, model: Any, **_: Any) -> dict[str, Any]:
            made = {key: tensors for key, tensors in input_dict.items() if key.endswith(".weight")}
            checkpoint: CodedCheckpoint = self.hf_quantizer.quantization_config.checkpoint
            layout = LAYOUTS[checkpoint.layout]
            for stem in (key.removesuffix(layout.codes) for key in input_dict if key.endswith(f".{layout.codes}")):
                names = [name for name in layout.names if stem + name in input_dict]
                experts = zip(*(input_dict[stem + name] for name in names), strict=True)
                made[f"{stem}weight"] = [
                    checkpoint.unpacked(dict(zip(names, tensors, strict=True))).values(model.dtype)
                    for tensors in experts
                ]
            return made

    @register_quantizer(_NAME)
    class Quantizer(HfQuantizer):  # type: ignore[misc]
        is_trainable = False

        @property
        def serialized_names(self) -> dict[str, list[str]]:
            names = LAYOUTS[self.quantization_config.checkpoint.layout].names
            return {"weight": ["weight", *filter(None, names)]}

        def is_serializable(self) -> bool:
            return False

        def get_load_operations(self) -> dict[str, Any]:
            return {} if self._placed else {"dequantize": Unpack}

        def get_weight_conversions(self) -> list[Any]:
            return []

        def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
            self._placed = _Placing(self.quantization_config.checkpoint, model).place()
            if self._placed and any(map(stacks_of, model.modules())):
                model.set_experts_implementation("eager")  # which asks for one expert's weights at a time
            return model
