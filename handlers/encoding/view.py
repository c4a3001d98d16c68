"""Answers dialects' queries about a model that generates no text. Runs in the worker, from any of its threads."""

from __future__ import annotations

from collections.abc import Sequence

from djl_python.config import ModelConfig
from djl_python.config.sources import shown_url
from djl_python.core.errors import PayloadError
from djl_python.core.types import Chat
from djl_python.ipc.protocol import Opened

from ..text_view import TextView
from .checkpoint import EncoderCheckpoint
from .texts import Texts


class EncoderView(TextView):
    """A `dialects.shared.views.QueriedModel`.

    Args:
        texts: reads texts as requests have them read.
        capacity: calls that the handler takes at once.
    """

    def __init__(
        self,
        config: ModelConfig,
        task: str,
        texts: Texts,
        checkpoint: EncoderCheckpoint,
        limits: Opened,
        capacity: int,
    ) -> None:
        super().__init__(texts.tokenizer, texts.limit)
        self.config = config
        self.task = task
        self.pooling = limits.pooling
        self.labels: Sequence[str] = checkpoint.labels
        self.model_id = shown_url(config.option.model_id) or config.name
        self.engine = limits.info
        self.dtype = limits.info.dtype
        self.max_batch_tokens = limits.max_batch_tokens
        self.capacity = capacity

    def render(self, chat: Chat) -> str:
        """Refuse: this model has no chats.

        Raises:
            PayloadError: always.
        """
        raise PayloadError(f"model {self.config.name!r} is for {self.task}: it has no chat template")
