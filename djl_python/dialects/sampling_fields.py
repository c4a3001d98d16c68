"""Fields that steer a draw: neutral where a request is greedy, and then named as without effect.

Runs in the worker. Each dialect has a table of its own, and its own rule about when to draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DrawFields:
    """The fields of a dialect that only a draw obeys. Their names are SamplingParams'.

    Attributes:
        neutral: by name, the values that ask for nothing. None, which is a field that was not given, never does.
        seeds: what the dialect calls a seed.
    """

    neutral: Mapping[str, tuple[float, ...]]
    seeds: tuple[str, ...] = ("seed",)

    def asked(self, parameters: object) -> list[str]:
        """The names of those that ask for something."""
        return [name for name, neutral in self.neutral.items() if getattr(parameters, name) not in (None, *neutral)]

    def given(self, parameters: object) -> dict[str, Any]:
        """The arguments of SamplingParams for a request that draws."""
        found = {name: value for name in self.neutral if (value := getattr(parameters, name)) is not None}
        if "top_k" in found:
            found["top_k"] = max(found["top_k"], 0)  # -1, which some dialects have, is off as well
        return found

    def ignored(self, parameters: object) -> list[str]:
        """The names of those that a greedy request was given in vain."""
        return self.asked(parameters) + [name for name in self.seeds if getattr(parameters, name) is not None]
