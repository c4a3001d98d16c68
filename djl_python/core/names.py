"""Names in settings: suggestions for misspelled ones, and lists of NAME=VALUE. Runs in every process."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

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
    near = nearest(key, known)
    return f"; did you mean {near}?" if near else ""


def choices(key: str, known: Iterable[str]) -> str:
    """'a, b, c; did you mean b?': the known names and a suggestion, which a single known name does not need."""
    names = list(known)
    return ", ".join(names) + (did_you_mean(key, names) if len(names) > 1 else "")


def values_by_name(text: str, read: Callable[[str], T], expected: str) -> dict[str, T]:
    """Read NAME=VALUE pairs, with commas between them. A name may contain "=".

    Args:
        read: the value of its text; raises ValueError.
        expected: what the text should be, for the message.

    Raises:
        ValueError: the text is not such a list; the message begins with "expected".

    Example:
        >>> values_by_name("gold=4, trial=0.5", float, "NAME=WEIGHT")
        {'gold': 4.0, 'trial': 0.5}
    """
    values: dict[str, T] = {}
    for pair in filter(None, (pair.strip() for pair in text.split(","))):
        name, _, value = (part.strip() for part in pair.rpartition("="))
        try:
            if not name:
                raise ValueError
            values[name] = read(value)
        except ValueError:
            raise ValueError(f"expected {expected}; {pair} is not one") from None
    return values
