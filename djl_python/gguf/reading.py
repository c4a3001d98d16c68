"""Reads values of a model's metadata by key, with the type that is expected. Runs wherever a GGUF file is read."""

from __future__ import annotations

import math
from typing import Any, TypeVar, cast

import numpy as np

from .errors import GgufError
from .shards import GgufModel

T = TypeVar("T")


class Metadata:
    """A model's metadata; keys that begin with a dot are those of its architecture (`llama.context_length`)."""

    def __init__(self, model: GgufModel) -> None:
        self.path, self._values = model.path, model.metadata
        self.architecture = self.text("general.architecture")

    def _full(self, key: str) -> str:
        return self.architecture + key if key.startswith(".") else key

    def _typed(self, key: str, kinds: tuple[type, ...], named: str, default: T | None) -> Any:
        full = self._full(key)
        value = self._values.get(full)
        if value is None:
            if default is None:
                raise GgufError(f"{self.path}: the metadata lacks {full}; expected {named}")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise GgufError(f"{self.path}: {full} is {_shown(value)}; expected {named}")
        return value

    def __contains__(self, key: str) -> bool:
        return self._full(key) in self._values

    def text(self, key: str, default: str | None = None) -> str:
        return cast(str, self._typed(key, (str,), "text", default))

    def flag(self, key: str, default: bool) -> bool:
        return cast(bool, self._typed(key, (bool,), "true or false", default))

    def number(self, key: str, default: float | None = None) -> float:
        number = float(self._typed(key, (int, float), "a number", default))
        if not math.isfinite(number):
            raise GgufError(f"{self.path}: {self._full(key)} is {number}; expected a finite number")
        return number

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`. A list with a number for each layer has to have equal numbers.

        Raises:
            GgufError: it is missing and has no default, or has another type.
        """
        value = self._values.get(self._full(key))
        if isinstance(value, np.ndarray) and value.ndim == 1 and len(value) and value.dtype.kind in "iu":
            if len(set(value.tolist())) > 1:
                raise GgufError(f"{self.path}: {self._full(key)} differs from layer to layer, which is not served here")
            number = int(value[0])
        else:
            number = cast(int, self._typed(key, (int,), "a whole number", default))
        if number < least and key in self:
            raise GgufError(f"{self.path}: {self._full(key)} is {number}; expected at least {least}")
        return number

    def texts(self, key: str) -> list[str]:
        return cast(list[str], self._typed(key, (list,), "a list of texts", None))

    def numbers(self, key: str, default: list[float] | None = None) -> list[Any]:
        numbers: Any = self._typed(key, (np.ndarray, list), "a list of numbers", default)
        if isinstance(numbers, np.ndarray):
            return cast(list[Any], numbers.tolist())
        if numbers and not isinstance(numbers[0], int | float):
            raise GgufError(f"{self.path}: {self._full(key)} is a list of texts; expected numbers")
        return cast(list[Any], numbers)


def _shown(value: object) -> str:
    if isinstance(value, list | np.ndarray):
        return f"a list of {len(value)}"
    return repr(value) if len(repr(value)) < 80 else f"{repr(value)[:80]}…"
