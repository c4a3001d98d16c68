"""Names of models of the Hugging Face Hub, as people write them.

Runs in the front end and in the worker. Source: the hub client's rules for the id of a repository.
"""

from __future__ import annotations

import re
from typing import Final

_ID: Final = re.compile(r"([\w.-]+/)?[\w.-]{1,96}", re.ASCII)
_PAGE: Final = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)", re.ASCII)


def is_hub_id(text: str) -> bool:
    """Whether a model of the hub can be called so: `owner/name`, or a name alone."""
    parts_end_well = all(part[:1] not in ".-" and part[-1:] not in ".-" for part in text.split("/"))
    return _ID.fullmatch(text) is not None and parts_end_well and "--" not in text and ".." not in text


def id_of_page(url: str) -> str:
    """The id of the model whose page in a browser this is; "" for other URLs.

    Example:
        >>> id_of_page("https://huggingface.co/owner/name/tree/main")
        'owner/name'
    """
    match = _PAGE.match(url)
    return match[1] if match else ""
