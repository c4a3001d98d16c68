"""The results of a batch: OpenAI's lines of output and error files, and the token usage in a reply's body.

Source: OpenAI's API reference, "The request output object". An answer of any status is in `response`; `error` is for
requests that were not answered: batch_expired, batch_cancelled, no_answer.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ..formats.json_framing import encode_json

NO_ANSWER: Final = "no_answer"
EXPIRED: Final = "batch_expired"
CANCELLED: Final = "batch_cancelled"


@dataclass(frozen=True)
class BatchReply:
    """An answer to a request, whole."""

    status: int
    body: bytes
    request_id: str = ""

    @property
    def failed(self) -> bool:
        """Whether it belongs into the error file."""
        return not 200 <= self.status < 300


class LineResponse(msgspec.Struct, frozen=True):
    """An answer as a line has it; a body that is not JSON is a string."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class UnansweredError(msgspec.Struct, frozen=True):
    """Why there is no answer."""

    code: str
    message: str


class ResultLine(msgspec.Struct, frozen=True):
    """A line of an output file or an error file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: UnansweredError | None = None


class TokenTotals(msgspec.Struct):
    """Tokens of prompts and of answers, as far as answers report them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompts'
    reasoning_tokens: int = 0  # of the answers'

    def add(self, other: TokenTotals) -> None:
        """Count another's too."""
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cached_tokens += other.cached_tokens
        self.reasoning_tokens += other.reasoning_tokens


def answered(custom_id: str, reply: BatchReply) -> ResultLine:
    """The line of a request that was answered."""
    return ResultLine(_id(), custom_id, LineResponse(reply.status, reply.request_id, _json(reply.body)))


def unanswered(custom_id: str, code: str, message: str) -> ResultLine:
    """The line of a request that was not."""
    return ResultLine(_id(), custom_id, None, UnansweredError(code, message))


class _Details(msgspec.Struct):
    """LMI's and TGI's count, where details were asked for."""

    generated_tokens: int = 0
    input_length: int | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _OpenAIUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Counted(msgspec.Struct):
    usage: _OpenAIUsage | None = None
    details: _Details | None = None


def usage_of(body: bytes | msgspec.Raw) -> TokenTotals:
    """The token usage in an answer's body: OpenAI's `usage` or LMI's `details`; zeros without either."""
    try:
        answer = msgspec.json.decode(body, type=_Counted)
    except msgspec.MsgspecError:
        return TokenTotals()
    if (usage := answer.usage) is not None:
        prompt = usage.prompt_tokens_details or _PromptDetails()
        completion = usage.completion_tokens_details or _CompletionDetails()
        return TokenTotals(
            usage.prompt_tokens, usage.completion_tokens, prompt.cached_tokens or 0, completion.reasoning_tokens or 0
        )
    if answer.details is not None:
        return TokenTotals(answer.details.input_length or 0, answer.details.generated_tokens)
    return TokenTotals()


def _id() -> str:
    return f"batch_req_{secrets.token_hex(12)}"


def _json(body: bytes) -> msgspec.Raw:
    """A body as JSON on one line."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = body.decode(errors="replace")
    return msgspec.Raw(encode_json(value))
