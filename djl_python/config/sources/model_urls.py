"""The URLs of models that are not registered: `model_url_pattern`. Runs in the front end."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import msgspec

from ...core.errors import ModelNotFoundError
from .urls import shown_url

#: In model_url_pattern, where the model's name goes.
MODEL_PLACE: Final = "{model}"
#: Names of models that a request may have loaded: a step of a path, and none that is hidden or leads up.
_LAZY_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class ModelUrls(msgspec.Struct, frozen=True):
    """The URLs of models that are not registered: the value of model_url_pattern.

    With {model} in it, it is the URL of the model that a request names. Else it is a regular expression, as in DJL,
    which the whole URL must match that a request brings.
    """

    pattern: str

    def __str__(self) -> str:
        return self.pattern

    @classmethod
    def parse(cls, text: str) -> ModelUrls:
        """Read either form.

        Raises:
            ValueError: it is neither.
        """
        if MODEL_PLACE not in text:
            try:
                re.compile(text)
            except re.error as exc:
                raise ValueError(
                    f"expected a URL with {MODEL_PLACE} in it, or a regular expression for URLs ({exc})"
                ) from None
        return cls(text)

    def url_of(self, name: str, given: str = "") -> str:
        """The URL of the model of this name. `given` is what the request says of it, where that is asked for.

        Raises:
            ModelNotFoundError: the request may not have that, or does not say enough.
        """
        if not _LAZY_NAME.fullmatch(name):
            raise ModelNotFoundError(
                f"there is no model {name[:200]!r}, and none of that name is loaded on demand: expected at most 128 "
                "letters, digits, _, - and dots, and no dot first"
            )
        if MODEL_PLACE in self.pattern:
            return self.pattern.replace(MODEL_PLACE, name)
        if not given:
            raise ModelNotFoundError(
                f"there is no model {name!r}; one is loaded on demand from a model_url (query parameter or header)"
            )
        steps = unquote(given).replace("\\", "/").split("/")
        if ".." in steps or not given.isprintable() or not re.fullmatch(self.pattern, given):
            raise ModelNotFoundError(f"model_url {shown_url(given)[:200]!r}: model_url_pattern does not permit it")
        return given
