"""Fields that only steer sampling: in a greedy request they stay neutral, and are named as without effect.

Runs in the worker. Each dialect has a table of its own, and its own rule about when to sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DrawFields:
    """The fields of a dialect that have an effect only when sampling, named as in SamplingParams.

    Attributes:
        neutral: the values of each field that switch it off, besides None (not given).
        seeds: the dialect's names of a seed.
    """

    neutral: Mapping[str, tuple[float, ...]]
    seeds: tuple[str, ...] = ("seed",)

    def asked(self, parameters: object) -> list[str]:
        """The names of the fields that are given and not neutral."""
        return [name for name, neutral in self.neutral.items() if getattr(parameters, name) not in (None, *neutral)]

    def given(self, parameters: object) -> dict[str, Any]:
        """The arguments of SamplingParams for a request that samples."""
        arguments = {name: value for name in self.neutral if (value := getattr(parameters, name)) is not None}
        if "top_k" in arguments:
            arguments["top_k"] = max(arguments["top_k"], 0)  # -1, which some dialects have, is off as well
        return arguments

    def ignored(self, parameters: object) -> list[str]:
        """The names of the fields that have no effect in a greedy request."""
        return self.asked(parameters) + [name for name in self.seeds if getattr(parameters, name) is not None]
