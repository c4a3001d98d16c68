"""The name that a wrong one was probably meant to be. Runs in every process."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

#: Least similarity of a name that is suggested (difflib's ratio).
NEARNESS = 0.75
#: `option.`, or what it became.
_PREFIX: Final = re.compile(r"^o\w{3,7}\.")


def nearest(key: str, known: Iterable[str]) -> str:
    """The known key that `key` was probably meant to be; "" if there is none.

    A key with the right name in the wrong place (`dtype` for `option.dtype`) is found too.
    """
    names = {_bare(name): name for name in known}
    close = difflib.get_close_matches(_bare(key), names, n=1, cutoff=NEARNESS)
    return names[close[0]] if close else ""


def _bare(key: str) -> str:
    return _PREFIX.sub("", key.lower())


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """'; did you mean X?', or "" where no known key is near."""
    found = nearest(key, known)
    return f"; did you mean {found}?" if found else ""
