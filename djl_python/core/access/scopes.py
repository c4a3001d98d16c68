"""Scopes: each route declares one, and API keys are granted some. Runs in every process."""

from __future__ import annotations

import enum
from typing import Final


class Scope(enum.Enum):
    """Who may use a route. A key has some of `KEY_SCOPES`; the other scopes need no key."""

    PUBLIC = "public"  # files that are the same for everyone and say nothing of models: the console's, /openapi.json
    PROBE = "probe"  # liveness and readiness, which orchestrators ask without credentials
    METRICS = "metrics"
    INFER = "infer"
    MANAGE = "manage"  # what changes the server, or shows what only its operator should see


#: The scopes that a key can have.
KEY_SCOPES: Final = (Scope.INFER, Scope.MANAGE, Scope.METRICS)
