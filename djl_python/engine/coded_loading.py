"""Has transformers load checkpoints of codes without the libraries that made them. Runs in the engine process, once.

By itself it loads them with those, which bring kernels of their own. Here it is told to make linears that hold a
checkpoint's tensors as they are (`coded_linear`), and to unpack weights of experts, which it stacks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from .coded_checkpoint import CodedCheckpoint
from .coded_linear import CodedLinear
from .native.parts import places_in
from .stored_codes import LAYOUTS

_NAME: Final = "codes_as_stored"  # what transformers knows this by


def as_transformers_reads(checkpoint: CodedCheckpoint) -> dict[str, Any]:
    """A `quantization_config` that has it load the checkpoint as said above."""
    _register()
    return {"quant_method": _NAME, "checkpoint": checkpoint}


@torch.inference_mode()
def unpack_linears_(model: nn.Module) -> int:
    """Replace the coded linears that are left by such with weights of numbers; how many."""
    left = [place for place in places_in(model) if isinstance(place[2], CodedLinear)]
    for parent, name, module in left:
        assert isinstance(module, CodedLinear)
        setattr(parent, name, module.as_dense_linear())
    return len(left)


def _coded_linears(checkpoint: CodedCheckpoint, model: Any) -> Iterator[tuple[str, CodedLinear]]:
    """In place of which modules of a model that isn't loaded yet. Experts that it stacks are none."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, rename_source_key

    changes = get_model_conversion_mapping(model)
    converters = [each for each in changes if isinstance(each, WeightConverter)]
    renamings = [each for each in changes if not isinstance(each, WeightConverter)]
    weights = model.state_dict()
    for stored, tensors in checkpoint.linears.items():
        name, pattern = rename_source_key(f"{stored}.weight", renamings, converters, model.base_model_prefix, weights)
        weight = weights.get(name)
        if pattern is not None or weight is None or weight.dim() != 2:
            continue
        place = name.removesuffix(".weight")
        module = model.get_submodule(place)
        shape = weight.shape if isinstance(module, nn.Linear) else weight.shape[::-1]  # GPT-2's are transposed
        yield place, CodedLinear(tuple(shape), checkpoint, tensors, module.bias, weight.dtype)


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
            return {"dequantize": Unpack}

        def get_weight_conversions(self) -> list[Any]:
            return []

        def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
            for place, linear in list(_coded_linears(self.quantization_config.checkpoint, model)):
                model.set_submodule(place, linear)
            return model
