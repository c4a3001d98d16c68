"""URLs of models: parsing them, and showing them without secrets.

Runs in every process.
"""

from __future__ import annotations

import re
from typing import Final

#: User and password of a URL. The password may contain a / that should have been escaped.
LOGIN: Final = re.compile(r"(?<=://)(?:[^\s,/?#]*|[^\s,/?#@:]+:(?!\d+[/?#])[^\s,?#]*)@")


def shown_url(url: str) -> str:
    """A model's URL for display: without user, password, query (perhaps a signature) and fragment. A path stays."""
    return re.split("[?#]", LOGIN.sub("", url))[0] if scheme_of(url) else url


def scheme_of(url: str) -> str:
    """The scheme of a URL, lower-cased; "" for a path. DJL's `file:/path` counts as a URL."""
    scheme, colon, rest = url.partition("://")
    if colon and scheme.replace("+", "").replace("-", "").isalnum():
        return scheme.lower()
    return "file" if url.startswith("file:") and rest == "" else ""
