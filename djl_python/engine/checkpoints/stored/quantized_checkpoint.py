"""A checkpoint whose linears are quantized: its format, and its tensors in their mapped files. Engine process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ..blocks import BlockRows
from ..quantization import Codes
from .checkpoint_files import open_tensors
from .unpacking import PACKED_FORMATS, UnpackedWeight

#: Quantization methods that are read here, and the libraries that transformers reads them with.
METHODS: Final = {
    "gptq": ("gptqmodel", "optimum"),
    "awq": ("gptqmodel",),
    "auto-round": ("auto-round",),
    "compressed-tensors": ("compressed-tensors",),
}
_USUAL_SIZE: Final = 128
_AUTO_ROUND: Final = {
    "auto_round": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:auto_gptq": "gptq",
    "auto_round:auto_awq": "gemm",
}


class UnsupportedFormatError(Exception):
    """The checkpoint is of a format that is not read here; the message names it."""


class QuantizedCheckpoint:
    """A checkpoint whose linears are quantized; their tensors stay in its mapped files until they are asked for.

    Args:
        config: the quantization part of its configuration.

    Attributes:
        method: one of `METHODS`.
        linears: names of the quantized linears.

    Raises:
        UnsupportedFormatError: its format is not read here; the message names it.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.method: str = config["quant_method"]
        read = {"compressed-tensors": _read_compressed, "auto-round": _read_auto_round}.get(self.method, _read_packed)
        self._format, self._bits, self._group_size = read(config)
        packed = PACKED_FORMATS.get(self._format)
        if packed is None or self._bits not in packed.bits:
            raise UnsupportedFormatError(f"{self.method} with {self._bits} bits in the layout {self._format!r}")
        self._tensors = _opened(path, set(packed.names))
        self.linears = list(self._tensors)
        if not self.linears:
            raise UnsupportedFormatError(f"{self.method} without safetensors files")
        if any(packed.codes not in files for files in self._tensors.values()):
            raise UnsupportedFormatError(f"{self.method} that scales activations")

    def __deepcopy__(self, _: dict[int, Any]) -> QuantizedCheckpoint:
        return self  # it never changes, and transformers copies configurations

    def tensors(self, linear: str) -> dict[str, Tensor]:
        """A linear's tensors as they are in the file, by name."""
        return {name: file.get_tensor(f"{linear}.{name}") for name, file in self._tensors[linear].items()}

    def source(self, linear: str, inputs: int) -> GroupedSource:
        """The weight of a linear with so many inputs."""
        return GroupedSource(self, linear, inputs)

    def codes(self, linear: str, inputs: int) -> UnpackedWeight:
        """A linear's unpacked codes. Linears may differ in bits, which follow from the number of `inputs`."""
        tensors, bits, packed = self.tensors(linear), self._bits, PACKED_FORMATS[self._format]
        if packed.inputs is not None:
            bits = tensors[packed.codes].shape[packed.inputs] * 32 // inputs
        return UnpackedWeight.unpacked(self._format, bits, self._group_size, tensors)


@dataclass(frozen=True)
class GroupedSource:
    """A weight of codes in groups: a `LinearSource`."""

    checkpoint: QuantizedCheckpoint
    linear: str
    inputs: int

    @property
    def tensors(self) -> list[Tensor]:
        return list(self.checkpoint.tensors(self.linear).values())

    def dense(self, dtype: torch.dtype, rows: Tensor | None = None) -> Tensor:
        made = self.checkpoint.codes(self.linear, self.inputs).values(dtype)
        return made if rows is None else made[rows]

    def codes(self) -> Codes | None:
        return self.checkpoint.codes(self.linear, self.inputs).for_kernels()

    def blocks(self) -> BlockRows | None:
        return None


def _read_packed(config: Mapping[str, Any]) -> tuple[str, int, int]:
    """(packed format, bits, group size) of GPTQ or AWQ."""
    awq = config["quant_method"] == "awq"
    usual, names = ("gemm", ("version", "format")) if awq else ("gptq", ("checkpoint_format", "format"))
    size = _first_of(config, "group_size", "q_group_size")
    bits = int(_first_of(config, "bits", "w_bit") or 4)
    return str(_first_of(config, *names) or usual).lower(), bits, _USUAL_SIZE if size is None else int(size)


def _read_auto_round(config: Mapping[str, Any]) -> tuple[str, int, int]:
    """(packed format, bits, group size) of AutoRound, which writes other tools' formats."""
    packing = str(config.get("packing_format", "auto_round:auto_gptq"))
    rotated = config.get("rotation_config") or config.get("spinquant_config")
    if config.get("data_type", "int") != "int" or int(config.get("act_bits") or 16) < 16 or rotated:
        raise UnsupportedFormatError("auto-round of more than integer weights")
    return _AUTO_ROUND.get(packing, packing), int(config.get("bits") or 4), int(config.get("group_size") or _USUAL_SIZE)


def _read_compressed(config: Mapping[str, Any]) -> tuple[str, int, int]:
    """(packed format, bits, group size) of compressed-tensors, which may quantize activations and more."""
    schemes = list((config.get("config_groups") or {}).values())
    weights = [scheme.get("weights") or {} for scheme in schemes]
    more = [scheme.get("input_activations") or scheme.get("output_activations") for scheme in schemes]
    kinds = {(each.get("type", "int"), each.get("group_size") or -1) for each in weights}
    kind, size = kinds.pop() if len(kinds) == 1 else ("", 0)
    more += [each.get("strategy", "group") not in ("group", "channel") for each in weights]
    more += [config.get("kv_cache_scheme"), _transforms_activations(config)]
    more.append((config.get("sparsity_config") or {}).get("format", "dense") != "dense")
    if kind != "int" or any(more):
        raise UnsupportedFormatError("compressed-tensors of more than integer weights in groups of one size")
    return str(config.get("format")), max(int(each.get("num_bits") or 0) for each in weights), size


def _transforms_activations(config: Mapping[str, Any]) -> bool:
    """Whether activations are to be rotated as well; rotations of weights alone are in their codes already."""
    schemes = ((config.get("transform_config") or {}).get("config_groups") or {}).values()
    applied = (each for scheme in schemes for each in scheme.get("apply") or ())
    return any(not str(each.get("location")).startswith("weight_") for each in applied)


def _first_of(config: Mapping[str, Any], *names: str) -> Any:
    """The first of these settings that is given."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def _opened(path: Path, wanted: set[str]) -> dict[str, dict[str, Any]]:
    """By linear that has tensors of the `wanted` names: the opened file of each, by the tensor's name."""
    files: dict[str, dict[str, Any]] = {}
    for key, file in open_tensors(path):
        linear, _, name = key.rpartition(".")
        if name in wanted:
            files.setdefault(linear, {})[name] = file
    return files
