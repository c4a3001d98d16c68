"""The tensors of a GGUF model by transformers' names. Runs in the engine process, at load, and for `check`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .architectures import architecture_of
from .container import GgufFile, Tensor
from .dequantizing import READABLE, dequantize
from .errors import GgufError
from .layouts import Floats
from .reading import Metadata
from .shards import GgufModel

_IN_LAYER: Final = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>[^.]+)\.(?P<kind>weight|bias)")
_ON_TOP: Final = re.compile(r"(?P<name>[^.]+)\.(?P<kind>weight|bias)")
#: Types whose codes the engine's kernels multiply with: names of `BlockType`.
MULTIPLIED: Final = frozenset(
    ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
)
#: Numbers that are turned into float32 at a time.
_AT_ONCE: Final = 1 << 22


@dataclass(frozen=True)
class Weight:
    """A weight of transformers' model, which is in a GGUF file.

    Attributes:
        shape: as transformers has it.
        first, rows: which rows of the tensor, where it has the weights of several experts.
        heads: of a weight whose rows llama.cpp's converter has reordered within each head; 0: they are as they were.
        groups: of a weight of queries, keys and values that was by groups of one key head: how many; 0: it was not.
        group: heads of queries in each.
        subtracted: what the converter has added to each number.
    """

    file: GgufFile
    tensor: Tensor
    shape: tuple[int, ...]
    first: int = 0
    rows: int = 0
    heads: int = 0
    groups: int = 0
    group: int = 0
    subtracted: float = 0.0

    @property
    def row(self) -> int:
        """Numbers of a row."""
        return self.tensor.shape[-1] if self.tensor.shape else 1

    @property
    def row_bytes(self) -> int:
        return self.row // self.tensor.type.numbers * self.tensor.type.size

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return self.rows * self.row_bytes

    @property
    def stored(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Its bytes in the file, rows in the stored order, as a view that copies nothing."""
        start = self.first * self.row_bytes
        return self.file.stored(self.tensor)[start : start + self.bytes]

    def is_multiplied_as_stored(self, name: str) -> bool:
        """Whether kernels can multiply with the codes of the weight of this name, transformers' own.

        Routers, which choose experts, are few numbers that decide much.
        """
        router = name.endswith((".mlp.gate.weight", ".shared_expert_gate.weight"))
        return self.tensor.type.name in MULTIPLIED and len(self.shape) == 2 and not router

    @property
    def order(self) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """The stored row of each of the weight's rows; None: they are in order."""
        if not (self.groups or self.heads):
            return None
        rows = np.arange(self.shape[0])
        if self.groups:
            ends = [self.groups * self.group, self.groups * (self.group + 1)]
            heads = np.split(rows.reshape(self.groups * (self.group + 2), -1), ends)
            return np.concatenate([part.reshape(self.groups, -1) for part in heads], axis=1).reshape(-1)
        return rows.reshape(self.heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def chunks(self) -> Iterator[tuple[int, Floats]]:
        """Yield (the first row, some rows) of the weight in float32, in the stored order, a bounded number at once."""
        stored, size = self.stored, self.row_bytes
        step = max(1, _AT_ONCE // self.row)
        for start in range(0, self.rows, step):
            stop = min(self.rows, start + step)
            made = dequantize(stored[start * size : stop * size], self.tensor.type).reshape(stop - start, self.row)
            yield start, made - np.float32(self.subtracted) if self.subtracted else made

    def some(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Floats:
        """Some rows of a matrix in float32."""
        stored = self.stored.reshape(self.rows, self.row_bytes)[rows if self.order is None else self.order[rows]]
        made = dequantize(np.ascontiguousarray(stored).reshape(-1), self.tensor.type).reshape(-1, self.row)
        return made - np.float32(self.subtracted) if self.subtracted else made

    def dense(self) -> Floats:
        """The whole weight in float32."""
        parts = [made for _, made in self.chunks()]
        made = np.concatenate(parts).reshape(self.shape)
        return made if self.order is None else made[self.order]


def weights_of(model: GgufModel) -> dict[str, Weight]:
    """The weights by transformers' names.

    Raises:
        GgufError: a tensor is not one of the architecture's, or of a type that is not read here; says which.
    """
    weights: dict[str, Weight] = {}
    for name, (file, tensor) in model.tensors.items():
        for target, weight in _named(model, name, file, tensor):
            if tensor.type.name not in READABLE:
                raise GgufError(
                    f"{file.path}: tensor {name} is of type {tensor.type.name}, which is not read here; expected "
                    f"{', '.join(sorted(READABLE))}"
                )
            weights[target] = weight
    return weights


def _named(model: GgufModel, name: str, file: GgufFile, tensor: Tensor) -> Iterator[tuple[str, Weight]]:
    architecture, metadata = architecture_of(model), Metadata(model)
    rows = tensor.numbers // (tensor.shape[-1] if tensor.shape else 1)
    if (match := _IN_LAYER.fullmatch(name)) and match["name"] in architecture.layer:
        target = f"{architecture.layers}.{int(match['layer'])}.{architecture.layer[match['name']]}"
        if "{}" in target:
            yield from _of_experts(file, tensor, target, match["kind"])
            return
        shape, heads, groups, group = tensor.shape, 0, 0, 0
        if key := architecture.permuted.get(match["name"]):
            heads = metadata.count(key, metadata.count(".attention.head_count"))
            if shape[0] % (2 * heads):
                raise GgufError(f"{file.path}: tensor {name} has {shape[0]} rows; expected pairs for {heads} heads")
        if match["name"] == architecture.grouped:
            groups = metadata.count(".attention.head_count_kv", 1)
            group = metadata.count(".attention.head_count") // groups
            if shape[0] % (groups * (group + 2)):
                raise GgufError(f"{file.path}: tensor {name} has {shape[0]} rows; expected {groups} groups of heads")
        if target.endswith("shared_expert_gate"):
            shape = (1, tensor.numbers)
        raised = architecture.raised and match["name"].endswith("_norm")
        yield f"{target}.{match['kind']}", Weight(file, tensor, shape, 0, rows, heads, groups, group, float(raised))
    elif (match := _ON_TOP.fullmatch(name)) and (top := architecture.top.get(match["name"])):
        raised = architecture.raised and match["name"] == "output_norm"
        yield f"{top}.{match['kind']}", Weight(file, tensor, tensor.shape, 0, rows, subtracted=float(raised))
    elif not (match and match["name"] in architecture.unused):
        raise GgufError(f"{file.path}: tensor {name} is not one of a {metadata.architecture} model's")


def _of_experts(file: GgufFile, tensor: Tensor, target: str, kind: str) -> Iterator[tuple[str, Weight]]:
    if len(tensor.shape) != 3:
        raise GgufError(f"{file.path}: tensor {tensor.name} has {len(tensor.shape)} dimensions; expected 3")
    experts, each, width = tensor.shape
    for expert in range(experts):
        name = f"{target.format(expert)}.{kind}"
        yield name, Weight(file, tensor, (each, width), first=expert * each, rows=each)
