"""The deadline that a request sets itself, by a header.

The front end reads it for the queue, the worker for the answer and for the error of a wrong one.
"""

from __future__ import annotations

import math
from typing import Final

#: Seconds that an answer may take. Generation then ends with the text so far.
DEADLINE_HEADER: Final = "x-request-timeout"


def timeout_of(text: str) -> float | None:
    """The seconds that a value of the header says; None: it is no number of seconds above 0.

    Example:
        >>> timeout_of("2.5"), timeout_of("soon"), timeout_of("-1")
        (2.5, None, None)
    """
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < math.inf else None
