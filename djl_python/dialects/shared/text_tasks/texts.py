"""The texts of a request: one or several, as strings or as token ids, in every API that takes texts.

Runs in the worker. The types limit how many texts there may be, where JSON Schema can say it; `text_inputs` does where
a list may be the token ids of one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from ....core import budgets
from ....core.errors import PayloadError
from ....core.text_tasks import TextInput

#: A text; an empty one has nothing to read.
Text = Annotated[str, Meta(min_length=1)]
TextList = Annotated[list[Text], Meta(min_length=1, max_length=budgets.TEXTS.most)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
#: A text or several, each as a string or as its token ids. A list of numbers is one text.
TextsOrIds = Text | Annotated[list[Text | TokenId | TokenIds], Meta(min_length=1)]


def text_inputs(
    given: str | Sequence[str | int | list[int]], field: str, like: TextInput
) -> tuple[tuple[TextInput, ...], bool]:
    """An input for each text, and whether there are several: a list, be it of one.

    Args:
        field: the path of the texts in the body.
        like: the settings that they share.

    Raises:
        PayloadError: there are too many, or numbers beside texts.
    """
    if isinstance(given, str):
        return (_input(given, field, like),), False
    if all(isinstance(element, int) for element in given):
        return (_input([element for element in given if isinstance(element, int)], field, like),), False
    if wrong := budgets.TEXTS.excess(len(given)):
        raise PayloadError(f"{field}: {wrong}", field)
    inputs = []
    for index, element in enumerate(given):
        at = f"{field}[{index}]"
        if isinstance(element, int):
            raise PayloadError(f"{at}: expected a text or an array of token ids, as the others are, got {element}", at)
        inputs.append(_input(element, at, like))
    return tuple(inputs), True


def paired(text: str, pair: str, field: str, like: TextInput) -> TextInput:
    """Two texts that are read together."""
    return msgspec.structs.replace(like, text=text, pair=pair, field=field)


def _input(given: str | list[int], field: str, like: TextInput) -> TextInput:
    if isinstance(given, str):
        return msgspec.structs.replace(like, text=given, field=field)
    return msgspec.structs.replace(like, ids=tuple(given), field=field)
