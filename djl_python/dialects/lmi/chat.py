"""LMI's chats: a body with `messages` on /invocations and /predictions/{model}.

Runs in the worker. Source: LMI's chat completions schema 0.31. The finish reasons are LMI's, and objects have the
fields of its tables. Streams are jsonlines unless option.output_formatter says sse_chat; under option.tgi_compat every
delta has role and content.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from ...config import ModelConfig
from ...core.errors import ServingError
from ...core.types import FinishReason
from ..shared.base import Parsed
from ..shared.chat.answer import ChatFormatter, ChatStyle
from ..shared.chat.request import read_chat
from ..shared.chat.shapes import AnswerDelta, ChatChunk, ChunkChoice
from ..shared.request_body import ignored_header
from .format import error_fields

#: Header of a chat's stream: the id of its objects. By it `LmiDialect.stream_error` also recognises a chat's stream.
COMPLETION_ID: Final = "x-completion-id"
FINISH_REASONS: Final = {reason: str(reason) for reason in FinishReason}


class LmiChatFormatter(ChatFormatter):
    """A chat's answer; an error is a last chunk without text, with the error's fields beside its choices."""

    def __init__(self, framing: str, *, tgi: bool, **options: Any) -> None:
        super().__init__(framing, ChatStyle(finish_reasons=FINISH_REASONS, role_always=tgi), **options)
        self._tgi = tgi
        if self.stream:
            self.headers[COMPLETION_ID] = self.id

    def error(self, error: ServingError) -> bytes:
        return self._encode(error_chunk(self.id, error, tgi=self._tgi)) + self._done


def error_chunk(chat: str, error: ServingError, *, tgi: bool) -> dict[str, Any]:
    """The last object of a chat's stream that failed; `chat` is the stream's id."""
    choice = ChunkChoice(0, AnswerDelta(), logprobs=None, finish_reason=FINISH_REASONS[FinishReason.ERROR])
    chunk = ChatChunk(id=chat, created=int(time.time()), choices=[choice])
    return {**msgspec.to_builtins(chunk), **error_fields(error, tgi=tgi)}


def parse_chat(body: dict[str, Any], framing: str, model: ModelConfig) -> Parsed:
    """Read a chat request.

    Raises:
        PayloadError: about the messages.
        ParameterError: about anything else.
    """
    parsed = read_chat(body, model, must_fit=False)
    formatter = LmiChatFormatter(
        framing,
        tgi=model.option.tgi_compat,
        fields=parsed.fields,
        headers=ignored_header(parsed.request.ignored),
    )
    return Parsed((parsed.request,), formatter)
