"""A request's turn among others: whose it is, and its priority.

Runs in the front end's event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ...core.budgets import LARGE_BODY_BYTES
from ...core.errors import ParameterError
from ...core.turns.precedence import MAX_PRIORITY, Precedence
from ...formats.json_part import fields_in

#: A header, which goes before the field of the body.
PRIORITY: Final = "x-request-priority"
_FIELD: Final = b'"priority"'


class _Parameters(msgspec.Struct, frozen=True):
    priority: int | None = None


class _Body(msgspec.Struct, frozen=True):
    """Where the dialects have `priority`: beside the prompt, or among its parameters."""

    priority: int | None = None
    parameters: _Parameters | None = None


def precedence_of(sender: Precedence, headers: Mapping[str, str], body: bytes, *, background: bool) -> Precedence:
    """The turn of a request, for the queue of calls. The worker reads the body itself, for the engine.

    Args:
        sender: has the tenant.

    Raises:
        ParameterError: the header x-request-priority is not a priority.
    """
    if (given := headers.get(PRIORITY)) is not None:
        try:
            priority = int(given)
        except ValueError:
            priority = MAX_PRIORITY + 1
        if abs(priority) > MAX_PRIORITY:
            raise ParameterError(
                f"{PRIORITY}: expected an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}, got {given[:40]!r}", PRIORITY
            )
    else:
        priority = _priority_in(body)
    return msgspec.structs.replace(sender, priority=priority, background=background)


def _priority_in(body: bytes) -> int:
    """The priority in a body that is not large; 0 where it has none, or what is there is for the worker to refuse."""
    if len(body) > LARGE_BODY_BYTES or _FIELD not in body:
        return 0
    if (read := fields_in(body, _Body)) is None:
        return 0
    given = read.priority if read.parameters is None or read.parameters.priority is None else read.parameters.priority
    return given if given is not None and abs(given) <= MAX_PRIORITY else 0
