"""Who a request is for and how urgent it is, which decides its turn.

Runs in every process.

The front end fills it in from the API key and the headers, the worker adds the priority of the body, and the queues of
the front end and of the engine (`core.turns.fair_queue`) read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from ..names import values_by_name


class Precedence(msgspec.Struct, frozen=True, array_like=True):
    """The turn of a call or a sequence among others.

    Attributes:
        tenant: the name whose share it counts towards; "": all who have none share one.
        weight: the tenant's share relative to other tenants' weights, above 0.
        priority: among requests of its tenant, lower numbers go first, as in vLLM.
        background: whether it belongs to a batch, which every other request goes before.

    Example:
        >>> Precedence("gold", weight=4.0, priority=-1)
        Precedence(tenant='gold', weight=4.0, priority=-1, background=False)
    """

    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    background: bool = False


#: Weights are from this to its inverse.
LEAST_WEIGHT: Final = 0.001
#: Priorities are from its negative to it.
MAX_PRIORITY: Final = 1_000_000
#: The turn of a request that says nothing of it.
ANY: Final = Precedence()


class TenantWeights(msgspec.Struct, frozen=True):
    """The weights of tenants by name; all others have 1.

    Example:
        >>> TenantWeights.parse("gold=4, trial=0.5").of("gold")
        4.0
    """

    weights: Mapping[str, float] = MappingProxyType({})

    def __str__(self) -> str:
        return ", ".join(f"{name}={weight:g}" for name, weight in self.weights.items())

    def of(self, tenant: str) -> float:
        """A tenant's weight."""
        return self.weights.get(tenant, 1.0)

    @classmethod
    def parse(cls, text: str) -> TenantWeights:
        """Read NAME=WEIGHT pairs, with commas between them.

        Raises:
            ValueError: the text is not such a list; the message begins with "expected".
        """
        expected = f"NAME=WEIGHT with commas between them, and weights from {LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}"
        return cls(values_by_name(text, _weight, expected))


def _weight(text: str) -> float:
    weight = float(text)
    if not LEAST_WEIGHT <= weight <= 1 / LEAST_WEIGHT:
        raise ValueError
    return weight
