"""Text as UTF-8 can have it. Runs in the worker."""

from __future__ import annotations


def well_formed(text: str) -> str:
    r"""The text without lone surrogates, which JSON's and Python's escapes (`"\ud800"`) can name and nobody can send.

    Each becomes U+FFFD; two that make a character become it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
