"""What a dialect's queries can ask the worker's model. Runs in the worker, from any of its threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from djl_python.config import ModelConfig
from djl_python.config.sources import shown_url
from djl_python.core.errors import ContextLengthError
from djl_python.core.types import Chat
from djl_python.dialects.shared.base import TokenSpan
from djl_python.ipc.protocol import Opened
from djl_python.text.tokens.long_texts import is_long, least_tokens
from djl_python.text.tokens.tokenizer import Tokenizer

from .preparation import Preparation

#: Most tokens of a text that are listed, if the model's context is not longer: clients may count the tokens of texts
#: that are too long to generate from.
MOST_LISTED: Final = 100_000
_DTYPES: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class ModelView:
    """A `dialects.shared.base.QueriedModel`.

    Args:
        path: the checkpoint's directory.
        capacity: calls that the handler takes at once.
    """

    def __init__(
        self,
        config: ModelConfig,
        path: Path,
        tokenizer: Tokenizer,
        preparation: Preparation,
        limits: Opened,
        capacity: int,
    ) -> None:
        self.config = config
        self.model_id = shown_url(config.option.model_id) or config.name
        self.engine = limits.info
        self.dtype = self.engine.dtype or _DTYPES.get(config.option.dtype) or _dtype_of(path)
        self.max_model_len = limits.max_model_len
        self.capacity = capacity
        self._tokenizer = tokenizer
        self._preparation = preparation

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[TokenSpan]:
        """The tokens of a text, special ones included (with an empty span).

        Raises:
            ContextLengthError: the text has more tokens than the model's context, and more than MOST_LISTED.
        """
        limit = max(self.max_model_len, MOST_LISTED)
        if is_long(text, limit) and (least := least_tokens(self._tokenizer, text, limit)) > limit:
            raise ContextLengthError(least, None, limit + 1, reason="of which a list is given", at_least=True)
        spans = self._tokenizer.spans(text, add_special_tokens)
        if len(spans) > limit:
            raise ContextLengthError(len(spans), None, limit + 1, reason="of which a list is given")
        return [TokenSpan(token_id, text[start:stop], start, stop) for token_id, start, stop in spans]

    def render(self, chat: Chat) -> str:
        """The prompt text that the model's chat template makes of a chat.

        Raises:
            PayloadError: the model has no template, or the template refuses these messages.
        """
        return self._preparation.render(chat)


def _dtype_of(path: Path) -> str:
    """The dtype that a checkpoint's config names, by torch's name; if it names none, transformers' default."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):  # an engine that needs no checkpoint
        return "float32"
    for part in (config, config.get("text_config") or {}):
        if (found := part.get("dtype") or part.get("torch_dtype")) is not None:
            return str(found).removeprefix("torch.")
    return "float32"
