"""Makes text encodable as UTF-8. Runs in the worker."""

from __future__ import annotations


def well_formed(text: str) -> str:
    r"""The text without surrogates, which JSON's and Python's escapes (`"\ud800"`) can make and UTF-8 can't encode.

    A pair of surrogates becomes its character; a lone one becomes U+FFFD.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
