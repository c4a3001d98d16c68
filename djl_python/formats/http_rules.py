"""HTTP's own rules for answers: their headers and statuses, and what a client accepts.

Used in the front end and the worker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

#: Pattern of a header's name.
TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
HEADER_NAME: Final = re.compile(TOKEN)
HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: `q=0.5` in an Accept header; some clients leave the zero out.
_WEIGHT: Final = re.compile(r"q\s*=\s*(0?\.\d+|[01](?:\.0*)?)")
#: Headers about the connection, which only the server may set, in lower case.
SERVERS_OWN: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding", "upgrade"})
#: Statuses without a body.
BODILESS: Final = frozenset({204, 304})
#: Statuses that APIs have and HTTP has not: Anthropic's 529.
_OTHERS: Final = {529: "Overloaded"}


def phrase_of(status: int) -> str:
    """The standard reason phrase of a status; "Unknown" for one that has none."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return _OTHERS.get(status, "Unknown")


def preferred(accept: str, offered: Sequence[str]) -> str | None:
    """The media type of those `offered` that an Accept header puts first; of several alike the first, of none None.

    The most specific range that a type is in says how much it is wanted (RFC 9110, 12.5.1). An empty header takes all.
    """
    weights = dict(map(_weighted_range, filter(str.strip, accept.lower().split(","))))
    if not weights:
        return offered[0]

    def weight(media_type: str) -> float:
        ranges = (media_type, media_type.partition("/")[0] + "/*", "*/*", "*")
        return next((weights[media_range] for media_range in ranges if media_range in weights), 0.0)

    best = max(offered, key=weight)
    return best if weight(best) > 0 else None


def _weighted_range(item: str) -> tuple[str, float]:
    """`text/html;level=1;q=0.5` -> (`text/html`, 0.5). A malformed weight counts as 1."""
    name, *parameters = (part.strip() for part in item.split(";"))
    match = next((_WEIGHT.fullmatch(part) for part in parameters if part.startswith("q")), None)
    return name, float(match[1]) if match else 1.0
