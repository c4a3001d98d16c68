"""Answers dialects' queries about the worker's model. Runs in the worker, from any of its threads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from djl_python.config import TEXT_GENERATION, ModelConfig
from djl_python.config.sources import shown_url
from djl_python.core.types import Chat
from djl_python.ipc.protocol import Opened
from djl_python.text.tokens.tokenizer import Tokenizer

from .preparation import Preparation
from .text_view import TextView

_DTYPES: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class ModelView(TextView):
    """A `dialects.shared.views.QueriedModel`.

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
        super().__init__(tokenizer, limits.max_model_len)
        self.config = config
        self.task, self.pooling = TEXT_GENERATION, ""
        self.labels: Sequence[str] = ()
        self.model_id = shown_url(config.option.model_id) or config.name
        self.engine = limits.info
        self.dtype = self.engine.dtype or _DTYPES.get(config.option.dtype) or _dtype_of(path)
        self.max_batch_tokens = limits.max_model_len * limits.max_batch_size
        self.capacity = capacity
        self._preparation = preparation

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
        if (dtype := part.get("dtype") or part.get("torch_dtype")) is not None:
            return str(dtype).removeprefix("torch.")
    return "float32"
