"""What a checkpoint says of the codes that its weights are. Runs in the engine process, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from .stored_codes import LAYOUTS, StoredCodes

#: What is read here, and the libraries that transformers reads it with.
METHODS: Final = {
    "gptq": "gptqmodel and optimum",
    "awq": "gptqmodel",
    "compressed-tensors": "compressed-tensors",
}
_DTYPES: Final = {
    "I32": torch.int32, "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
}  # fmt: skip
_USUAL_SIZE: Final = 128


class UnreadableError(Exception):
    """The checkpoint is of a kind that is not read here."""


@dataclass(frozen=True)
class CodedCheckpoint:
    """A checkpoint whose linears are codes.

    Attributes:
        method: of `METHODS`.
        layout: of `LAYOUTS`.
        bits: of a code, in linears that say nothing else.
        group_size: of groups in order; below 1, there is one.
        linears: of each name the tensors, without their numbers.
    """

    method: str
    layout: str
    bits: int
    group_size: int
    linears: Mapping[str, Mapping[str, Tensor]]

    @staticmethod
    def opened(path: Path, said: Mapping[str, Any]) -> CodedCheckpoint:
        """Look at a checkpoint whose configuration says this of its quantization.

        Raises:
            UnreadableError: says what about it.
        """
        method = said["quant_method"]
        layout, bits, size = _read_compressed(said) if method == "compressed-tensors" else _read_packed(said)
        if layout not in LAYOUTS or bits not in LAYOUTS[layout].bits:
            raise UnreadableError(f"{method} with {bits} bits in the layout {layout!r}")
        linears = _linears(path, layout)
        if not linears:
            raise UnreadableError(f"{method} without safetensors files")
        if any(LAYOUTS[layout].codes not in tensors for tensors in linears.values()):
            raise UnreadableError(f"{method} that scales activations")
        return CodedCheckpoint(method, layout, bits, size, linears)

    def unpacked(self, tensors: Mapping[str, Tensor], inputs: int | None = None) -> StoredCodes:
        """The codes of one linear, of which its number of inputs may tell the bits."""
        words, bits = tensors[LAYOUTS[self.layout].codes], self.bits
        if inputs is not None and self.layout != "gemm":  # each linear may have its own
            bits = words.shape[1 if self.layout == "pack-quantized" else 0] * 32 // inputs
        return StoredCodes.unpacked(self.layout, bits, self.group_size, tensors)


def _read_packed(said: Mapping[str, Any]) -> tuple[str, int, int]:
    """(layout, bits, group size) of GPTQ or AWQ."""
    awq = said["quant_method"] == "awq"
    usual, names = ("gemm", ("version", "format")) if awq else ("gptq", ("checkpoint_format", "format"))
    size = _said(said, "group_size", "q_group_size")
    bits = int(_said(said, "bits", "w_bit") or 4)
    return str(_said(said, *names) or usual).lower(), bits, _USUAL_SIZE if size is None else int(size)


def _read_compressed(said: Mapping[str, Any]) -> tuple[str, int, int]:
    """(layout, bits, group size) of compressed-tensors, which may round activations too, or other things."""
    schemes = list((said.get("config_groups") or {}).values())
    weights = [scheme.get("weights") or {} for scheme in schemes]
    more = [scheme.get("input_activations") or scheme.get("output_activations") for scheme in schemes]
    kinds = {(each.get("type", "int"), each.get("group_size") or -1) for each in weights}
    if len(kinds) != 1 or kinds.copy().pop()[0] != "int" or any(more) or said.get("kv_cache_scheme"):
        raise UnreadableError("compressed-tensors of more than integer weights in groups of one size")
    return str(said.get("format")), max(int(each.get("num_bits") or 0) for each in weights), kinds.pop()[1]


def _said(said: Mapping[str, Any], *names: str) -> Any:
    return next((said[name] for name in names if said.get(name) is not None), None)


def _linears(path: Path, layout: str) -> dict[str, dict[str, Tensor]]:
    from safetensors import safe_open

    found: dict[str, dict[str, Tensor]] = {}
    wanted = set(LAYOUTS[layout].names)
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (it can't be iterated over)
                module, _, name = key.rpartition(".")
                if name not in wanted:
                    continue
                lies = tensors.get_slice(key)
                dtype = _DTYPES[lies.get_dtype()]
                found.setdefault(module, {})[name] = torch.empty(lies.get_shape(), dtype=dtype, device="meta")
    return found
