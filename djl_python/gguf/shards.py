"""A model in one GGUF file, or in several: `NAME-00001-of-00003.gguf`. Runs wherever a GGUF file is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .container import GgufFile, Tensor, read_file
from .errors import GgufError
from .files import parts_of

_COUNT: Final = "split.count"
_NUMBER: Final = "split.no"
_TENSORS: Final = "split.tensors.count"


@dataclass(frozen=True)
class GgufModel:
    """A model's files, the first of which has the metadata.

    Attributes:
        path: the file that was named, as messages cite it; the first part of several.
        tensors: by name, each with its file.
    """

    path: Path
    files: tuple[GgufFile, ...]
    tensors: Mapping[str, tuple[GgufFile, Tensor]]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.files[0].metadata

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(file.mapped) for file in self.files)


def read_model(path: Path) -> GgufModel:
    """Read a model's metadata and tables of tensors. `path` is its file, or any of its parts.

    Raises:
        GgufError: a part is missing, or does not fit the others; or a file is damaged.
    """
    names = parts_of(path)
    if missing := [each for each in names if not each.is_file()]:
        raise GgufError(f"{names[0]}: {missing[0].name} is missing, of {len(names)} part{'s' * (len(names) > 1)}")
    files = tuple(map(read_file, names))
    for number, file in enumerate(files):
        stated = file.metadata.get(_NUMBER, 0), file.metadata.get(_COUNT, 1) or 1
        if stated != (number, len(files)):
            raise GgufError(
                f"{file.path}: {_NUMBER} and {_COUNT} are {stated[0]} and {stated[1]}; expected {number} and "
                f"{len(files)}, as its name says"
            )
    tensors: dict[str, tuple[GgufFile, Tensor]] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise GgufError(f"{file.path}: tensor {name!r} is in {tensors[name][0].path.name} too")
            tensors[name] = file, tensor
    expected = files[0].metadata.get(_TENSORS, len(tensors))
    if expected != len(tensors):
        raise GgufError(f"{names[0]}: {len(tensors)} tensors in all parts; expected {expected}, as {_TENSORS} says")
    return GgufModel(names[0], files, tensors)
