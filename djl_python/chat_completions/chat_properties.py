"""The body of a chat request as an object: `ChatProperties(**body)`.

Runs in the worker. Source: LMI's "Chat Completions API Schema".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from ..properties_manager.declared import Declared

#: Field -> least and greatest value.
_RANGES: Mapping[str, tuple[float, float]] = {
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "temperature": (0, 2),
    "top_logprobs": (0, 20),
}


class ChatProperties(Declared):
    """The parameters of a chat, with LMI's defaults.

    `model_dump(by_alias=True)` has them under the names of LMI's generation parameters.

    Raises:
        ValueError: one of them has a wrong type or is out of its range, or a message lacks its role or its content.
    """

    aliases: ClassVar[Mapping[str, str]] = {"max_tokens": "max_new_tokens", "top_logprobs": "logprobs"}
    hidden: ClassVar[Collection[str]] = ("model", "logit_bias", "logprobs", "n", "user")

    messages: list[dict[str, Any]]
    model: str | None = None
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    max_tokens: int | None = None
    n: int | None = 1
    presence_penalty: float | None = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    temperature: float | None = 1.0
    top_p: float | None = 1.0
    user: str | None = None

    def check(self) -> None:
        for message in self.messages:
            if "role" not in message or "content" not in message:
                raise ValueError(f"a message needs a role and a content, found {', '.join(message) or 'neither'}")
        if not self.logprobs:
            self.top_logprobs = None
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name}: expected a number from {least:g} to {most:g}, got {value}")
        if any(not -100 <= bias <= 100 for bias in (self.logit_bias or {}).values()):
            raise ValueError("logit_bias: expected numbers from -100 to 100")
