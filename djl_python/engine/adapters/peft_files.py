"""Reads LoRA adapters as peft saves them: `adapter_config.json` and `adapter_model.safetensors`. Engine process.

An adapter adds `b @ a` to the weight of each module that it changes. Everything is checked against the model's shapes
before a tensor is read, so that no file of a client's takes more memory than its products.

Source: peft 0.21, `LoraConfig` and `get_peft_model_state_dict`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...config.adapters import ADAPTER_FILE
from ...config.model import read_json_object
from ...core.errors import ModelLoadError, ParameterError
from .targets import Target

#: What peft saves an adapter's weights in.
WEIGHTS_FILE: Final = "adapter_model.safetensors"
_PICKLED_FILE: Final = "adapter_model.bin"

#: What peft puts before the names of the model's modules.
_PREFIX: Final = "base_model.model."
#: How the names of a module's two matrices end: those of a linear, and those of an embedding.
_A_ENDS: Final = (".lora_A.weight", ".lora_embedding_A")
_B_ENDS: Final = (".lora_B.weight", ".lora_embedding_B")
#: The base's own embedding, which peft saves beside the adapter of one.
_BASE_END: Final = ".base_layer.weight"
_NUMBERS: Final = ("F64", "F32", "F16", "BF16")

#: Fields of peft's configuration that change what is computed -> what they stand for. Unset, false or empty is fine.
_REFUSED: Final = {
    "use_dora": "DoRA",
    "lora_bias": "biases (lora_bias)",
    "modules_to_save": "whole weights of modules (modules_to_save)",
    "trainable_token_indices": "trained tokens (trainable_token_indices)",
    "layer_replication": "replicated layers (layer_replication)",
    "target_parameters": "parameters outside of linears (target_parameters)",
    "alora_invocation_tokens": "aLoRA (alora_invocation_tokens)",
    "use_qalora": "QALoRA (use_qalora)",
    "use_bdlora": "block-diagonal LoRA (use_bdlora)",
    "arrow_config": "Arrow (arrow_config)",
    "kasa_config": "KaSA (kasa_config)",
    "monteclora_config": "MonteCLoRA (monteclora_config)",
    "velora_config": "VeLoRA (velora_config)",
    "ensure_weight_tying": "tied products (ensure_weight_tying)",
}
#: Values of init_lora_weights that change the base's weights: the adapter is none of the base as it is.
_CHANGED_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a weight (out, in): `b @ a`, in fp32; `b` is scaled already.

    Attributes:
        a: (rank, in); of an embedding, (rank, tokens).
        b: (out, rank)
    """

    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        """How many numbers are between the two products."""
        return len(self.a)

    @property
    def bytes(self) -> int:
        """What the two take in memory."""
        return self.a.nbytes + self.b.nbytes


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter in memory.

    Attributes:
        rank: the highest of its products.
        products: by the module's name in the transformers model.
    """

    rank: int
    products: Mapping[str, LowRank]

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        return sum(product.bytes for product in self.products.values())


@dataclass(frozen=True)
class _Planned:
    """The product of one module that a file has, with the names of its tensors."""

    module: str
    a: str
    b: str
    rank: int
    inputs: int
    outputs: int
    scale: float


@dataclass(frozen=True)
class AdapterPlan:
    """What an adapter's files say of it, whose tensors have not been read.

    Attributes:
        rank: the highest of its products.
        bytes: what it takes in memory once it is read.
    """

    file: Path
    rank: int
    bytes: int
    products: tuple[_Planned, ...]

    def read(self) -> LoraAdapter:
        """Read the tensors.

        Raises:
            ParameterError: the file can't be read, or has values that are not numbers.
        """
        products = {}
        with _opened(self.file) as file:
            names = set(file.keys())
            for plan in self.products:
                if not {plan.a, plan.b} <= names:
                    raise _refusal(f"{self.file} has changed since it was registered")
                # Copied: the tensors are the file's pages, which whoever writes the file changes.
                a, b = (file.get_tensor(name).to(torch.float32, copy=True) for name in (plan.a, plan.b))
                if a.shape != (plan.rank, plan.inputs) or b.shape != (plan.outputs, plan.rank):
                    raise _refusal(f"{self.file} has changed since it was registered")
                for name, matrix in ((plan.a, a), (plan.b, b)):
                    if not bool(torch.isfinite(matrix).all()):
                        raise _refusal(f"{name} has values that are not finite numbers")
                products[plan.module] = LowRank(a, b * plan.scale)
        return LoraAdapter(self.rank, products)


def read_adapter(directory: Path, targets: Mapping[str, Target]) -> LoraAdapter:
    """Read an adapter; `plan_adapter` describes the arguments and errors."""
    return plan_adapter(directory, targets).read()


def plan_adapter(directory: Path, targets: Mapping[str, Target]) -> AdapterPlan:
    """Check an adapter's files, of which only the header and the configuration are read.

    Args:
        targets: the modules of the model that an adapter may change, by name.

    Raises:
        ParameterError: a file is missing or damaged, or the adapter is none that can be computed beside this model.
    """
    config = _config(directory)
    file = directory / WEIGHTS_FILE
    if not file.is_file():
        pickled = f"; {_PICKLED_FILE} is a pickle, which is never read" if (directory / _PICKLED_FILE).is_file() else ""
        raise _refusal(f"there is no {WEIGHTS_FILE} in {directory}{pickled}")
    with _opened(file) as opened:
        names = opened.keys()
        shapes = {name: _shape(opened, name) for name in names}
    products = tuple(_planned(config, shapes, targets))
    if not products:
        raise _refusal(f"{file} has no products of LoRA: expected names such as {_PREFIX}MODULE{_A_ENDS[0]}")
    rank = max(product.rank for product in products)
    sizes = (p.rank * (targets[p.module].inputs + targets[p.module].outputs) for p in products)
    return AdapterPlan(file, rank, sum(sizes) * torch.float32.itemsize, products)


def _config(directory: Path) -> dict[str, Any]:
    """The adapter's configuration, once it says nothing that can't be computed."""
    if not (directory / ADAPTER_FILE).is_file():
        raise _refusal(f"there is no {ADAPTER_FILE} in {directory}: expected what peft saves")
    try:
        config = read_json_object(directory / ADAPTER_FILE)
    except ModelLoadError as exc:
        raise _refusal(exc.message) from exc
    if (kind := str(config.get("peft_type") or "LORA")).upper() != "LORA":
        raise _refusal(f"it is one of {kind}; expected LORA")
    if (bias := config.get("bias") or "none") != "none":
        raise _refusal(f"it has biases (bias={bias}), which are not served: expected none")
    for field, what in _REFUSED.items():
        if config.get(field):
            names = config[field] if field in ("modules_to_save", "target_parameters") else ()
            raise _refusal(f"it has {what}{_named(names)}, which is not served; expected low-rank products alone")
    begun = str(config.get("init_lora_weights") or "").lower()
    if begun.startswith(_CHANGED_BASE):
        raise _refusal(
            f"it belongs to a base that init_lora_weights={begun} has changed; expected one that peft's "
            "path_initial_model_for_weight_conversion has made into LoRA"
        )
    return config


def _named(names: Any) -> str:
    return f": {', '.join(map(str, names))}" if isinstance(names, list | tuple) and names else ""


def _shape(file: Any, name: str) -> tuple[int, ...]:
    part = file.get_slice(name)
    if part.get_dtype() not in _NUMBERS:
        raise _refusal(f"{name} has dtype {part.get_dtype()}; expected one of {', '.join(_NUMBERS)}")
    return tuple(part.get_shape())


def _planned(
    config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], targets: Mapping[str, Target]
) -> Iterator[_Planned]:
    """The products in a file of tensors with these shapes.

    Raises:
        ParameterError: a tensor is of no product, or does not fit the model.
    """
    left = set(shapes)
    for a_name in sorted(shapes):
        end = next((end for end in _A_ENDS if a_name.endswith(end)), None)
        if end is None:
            continue
        b_name = a_name.removesuffix(end) + _B_ENDS[_A_ENDS.index(end)]
        module = a_name.removesuffix(end).removeprefix(_PREFIX)
        target = _target(module, targets)
        if target.embedding != (end == _A_ENDS[1]):
            raise _refusal(f"{a_name}: {module} is {'an embedding' if target.embedding else 'a linear'} of this model")
        rank = _pattern_value(config, "rank_pattern", module, config.get("r", 8), 1)
        _check_shape(a_name, shapes.get(a_name), (rank, target.inputs))
        _check_shape(b_name, shapes.get(b_name), (target.outputs, rank))
        alpha = _pattern_value(config, "alpha_pattern", module, config.get("lora_alpha", 8), 0)
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        left -= {a_name, b_name}
        yield _Planned(module, a_name, b_name, rank, target.inputs, target.outputs, scale * target.scale)
    for name in sorted(left):
        _check_other(name, shapes[name], targets)


def _target(module: str, targets: Mapping[str, Target]) -> Target:
    if (target := targets.get(module)) is not None:
        return target
    parent, _, last = module.rpartition(".")
    beside = sorted(name.rpartition(".")[2] for name in targets if parent and name.rpartition(".")[0] == parent)
    there = f"; beside it are {', '.join(beside)}" if beside else ""
    raise _refusal(f"it changes {module}, but this model has no linear or embedding {last} there{there}")


def _pattern_value(config: Mapping[str, Any], field: str, module: str, default: Any, least: float) -> Any:
    """The number that peft uses for a module: that of the first pattern which matches its name, or the default."""
    patterns = config.get(field) or {}
    if not isinstance(patterns, Mapping):
        raise _refusal(f"{ADAPTER_FILE}: {field}: expected a JSON object")
    number = default
    for pattern, value in patterns.items():
        try:
            matches = re.match(rf"(.*\.)?({pattern})$", module)
        except re.error as exc:
            raise _refusal(f"{ADAPTER_FILE}: {field}: {pattern} is no regular expression: {exc}") from exc
        if matches:
            number = value
            break
    whole = isinstance(number, int) and not isinstance(number, bool)
    if not (whole or (least == 0 and isinstance(number, float) and math.isfinite(number))) or number < least:
        name = {"rank_pattern": "r", "alpha_pattern": "lora_alpha"}[field]
        raise _refusal(f"{ADAPTER_FILE}: {name} of {module} is {number!r}; expected a number of at least {least}")
    return number


def _check_shape(name: str, shape: tuple[int, ...] | None, expected: tuple[int, int]) -> None:
    if shape is None:
        raise _refusal(f"there is no {name}")
    if shape != expected:
        raise _refusal(f"{name} has shape {list(shape)}; expected {list(expected)} for this model")


def _check_other(name: str, shape: tuple[int, ...], targets: Mapping[str, Target]) -> None:
    """Refuse a tensor that is of no product, unless it is the base's embedding, which peft saves beside one."""
    module = name.removesuffix(_BASE_END).removeprefix(_PREFIX)
    if name.endswith(_BASE_END) and (target := targets.get(module)) is not None:
        same = (target.inputs, target.outputs) if target.embedding else (target.outputs, target.inputs)
        _check_shape(name, shape, same)
        return
    if "lora_magnitude_vector" in name:
        raise _refusal(f"it has DoRA ({name}), which is not served; expected low-rank products alone")
    if name.endswith(".bias"):
        raise _refusal(f"it has biases ({name}), which are not served; expected low-rank products alone")
    raise _refusal(f"it has {name}, whole weights, which are not served; expected low-rank products alone")


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as exc:
        raise _refusal(f"{file} can't be read: {exc}") from exc


def _refusal(reason: str) -> ParameterError:
    return ParameterError(reason, "src")
