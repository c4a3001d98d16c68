"""LMI's answers: one JSON object, or a stream of token objects; and the same in TGI's shape under option.tgi_compat.

Runs in the worker. Where alternatives are asked for (`top_n_tokens`, `logprobs`), they come as in TGI: `top_tokens`
beside `token` on each line of a stream, and `details.top_tokens`, a list for each token, otherwise. Alternatives of
prompt tokens (`prompt_logprobs`) are in `details.prefill_top_tokens`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...core.errors import ServingError
from ...core.types import Delta, Finish, Token, TopToken
from ..shared.framing import FramedFormatter
from ..shared.typed_errors import typed_error

ERROR_STATUS: Final = 424


def lmi_token(token: Token | TopToken) -> dict[str, Any]:
    """LMI's token object."""
    shape: dict[str, Any] = {"id": token.id, "text": token.text, "log_prob": token.logprob}
    if token.special:
        shape["special_token"] = True
    return shape


def tgi_token(token: Token | TopToken) -> dict[str, Any]:
    """TGI's token object."""
    return {"id": token.id, "text": token.text, "logprob": token.logprob, "special": token.special}


@dataclass
class _Sequence:
    """One sequence of an answer that is not streamed; `tokens` only where details were asked for."""

    tokens: list[Token] = field(default_factory=list)
    finish: Finish | None = None


class LmiFormatter(FramedFormatter):
    """One answer in LMI's shape.

    Args:
        framing: json, jsonlines or sse; the last two stream.
        details: whether the final object has details.
        return_full_text: whether `generated_text` begins with the prompt.
        alternatives: whether top_tokens were asked for.
        headers: further response headers.
    """

    _token: Callable[[Token | TopToken], dict[str, Any]] = staticmethod(lmi_token)

    def __init__(
        self,
        framing: str,
        *,
        details: bool = False,
        return_full_text: bool = False,
        alternatives: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(framing, headers)
        self.shows_logprobs = self.stream or details
        self._details = details
        self._full_text = return_full_text
        self._alternatives = alternatives
        self._sequences: defaultdict[int, _Sequence] = defaultdict(_Sequence)

    def push(self, delta: Delta) -> bytes:
        if self.stream:
            last = len(delta.tokens) - 1
            return b"".join(
                self._encode(self._line(token, delta.finish if position == last else None))
                for position, token in enumerate(delta.tokens)
            )
        sequence = self._sequences[delta.choice]
        if self._details:
            sequence.tokens += delta.tokens
        sequence.finish = delta.finish
        return b""

    def end(self) -> bytes:
        return b"" if self.stream else self._encode(self._body())

    def error(self, error: ServingError) -> bytes:
        return self._encode(error_line(error, tgi=False))

    def _body(self) -> Any:
        """The whole body of an answer that is not streamed."""
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The object of an answer that is not streamed, once it is complete."""
        best, *others = (sequence for _, sequence in sorted(self._sequences.items()))
        assert best.finish is not None
        shape: dict[str, Any] = {"generated_text": self._text(best.finish)}
        if self._details:
            shape["details"] = self._whole_details(best)
            if others:
                shape["details"]["best_of_sequences"] = [self._other(other) for other in others]
        return shape

    def _line(self, token: Token, finish: Finish | None) -> dict[str, Any]:
        """One object of a stream; `finish` with the last."""
        shape: dict[str, Any] = {"token": self._token(token)}
        if self._alternatives:
            shape["top_tokens"] = self._top(token)
        if finish is not None:
            shape["generated_text"] = self._text(finish)
            if self._details:
                shape["details"] = self._common_details(finish)
        return shape

    def _common_details(self, finish: Finish) -> dict[str, Any]:
        shape: dict[str, Any] = {
            "finish_reason": finish.reason,
            "generated_tokens": finish.generated_tokens,
            "inputs": finish.prompt,
        }
        if finish.prefill:
            shape["prefill"] = [self._token(token) for token in finish.prefill]
            if any(token.top for token in finish.prefill):
                shape["prefill_top_tokens"] = [self._top(token) for token in finish.prefill]
        return shape

    def _whole_details(self, sequence: _Sequence) -> dict[str, Any]:
        assert sequence.finish is not None
        return self._common_details(sequence.finish) | self._token_lists(sequence)

    def _token_lists(self, sequence: _Sequence) -> dict[str, Any]:
        shape: dict[str, Any] = {"tokens": [self._token(token) for token in sequence.tokens]}
        if self._alternatives:
            shape["top_tokens"] = [self._top(token) for token in sequence.tokens]
        return shape

    def _other(self, sequence: _Sequence) -> dict[str, Any]:
        """One of the sequences that are not the best."""
        finish = sequence.finish
        assert finish is not None
        return {
            "finish_reason": finish.reason,
            "generated_tokens": finish.generated_tokens,
            "generated_text": self._text(finish),
            **self._token_lists(sequence),
        }

    def _top(self, token: Token) -> list[dict[str, Any]]:
        return [self._token(top) for top in token.top]

    def _text(self, finish: Finish) -> str:
        return finish.prompt + finish.text if self._full_text else finish.text


class TgiCompatFormatter(LmiFormatter):
    """LMI's answer with every field that TGI's clients require, beside LMI's own."""

    _token = staticmethod(tgi_token)

    def __init__(self, framing: str, **options: Any) -> None:
        super().__init__(framing, **options)
        self._index = 0

    def error(self, error: ServingError) -> bytes:
        return self._encode({**error_line(error, tgi=True), "index": self._index + 1})

    def _body(self) -> Any:
        return [self.answer()]

    def _other(self, sequence: _Sequence) -> dict[str, Any]:
        assert sequence.finish is not None
        return {"prefill": [], "seed": sequence.finish.seed, **super()._other(sequence)}

    def _line(self, token: Token, finish: Finish | None) -> dict[str, Any]:
        self._index += 1
        return {"index": self._index, "generated_text": None, "details": None} | super()._line(token, finish)

    def _common_details(self, finish: Finish) -> dict[str, Any]:
        shape = {"seed": finish.seed, **super()._common_details(finish)}
        if self.stream:
            shape["input_length"] = finish.prompt_tokens
        else:
            shape.setdefault("prefill", [])
        return shape


class ArrayFormatter(FramedFormatter):
    """The answers to an array of prompts: an array with the object of each, or its error object.

    Args:
        items: a formatter for each prompt, which does not stream.
        choices: how many sequences each prompt has.
        tgi: whether errors have TGI's fields too.
        headers: further response headers.
    """

    isolates = True

    def __init__(
        self, items: Sequence[LmiFormatter], choices: int, *, tgi: bool, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__("json", headers)
        self.shows_logprobs = items[0].shows_logprobs
        self._items = items
        self._choices = choices
        self._tgi = tgi
        self._errors: dict[int, ServingError] = {}

    def push(self, delta: Delta) -> bytes:
        return self._items[delta.choice // self._choices].push(delta)

    def end(self) -> bytes:
        return self._encode([self._item(index) for index in range(len(self._items))])

    def fail_item(self, index: int, error: ServingError) -> None:
        self._errors[index] = error

    def error(self, error: ServingError) -> bytes:
        return self._encode(error_object(error, tgi=self._tgi))

    def _item(self, index: int) -> dict[str, Any]:
        error = self._errors.get(index)
        return self._items[index].answer() if error is None else error_object(error, tgi=self._tgi)


def error_line(error: ServingError, *, tgi: bool) -> dict[str, Any]:
    """The line that ends a failed stream: the documented one, with the error's text and code.

    Its index, which TGI's clients require, is 0: a process that ends another's stream has not counted its lines.
    """
    token = (
        {"id": -1, "text": "", "logprob": -1, "special": True}
        if tgi
        else {"id": -1, "text": "", "log_prob": -1, "special_token": True}
    )
    details = {"finish_reason": "error", "generated_tokens": None, "inputs": None}
    line = {"token": token, "generated_text": "", "details": details, **error_fields(error, tgi=tgi)}
    return {"index": 0, **line} if tgi else line


def error_object(error: ServingError, *, tgi: bool) -> dict[str, Any]:
    """The body of a failed answer that is not streamed: the documented object, with the error's text and code."""
    details = {"finish_reason": "error", "generated_tokens": None, "inputs": None, "tokens": None}
    return {"generated_text": "", "details": details, **error_fields(error, tgi=tgi)}


def error_fields(error: ServingError, *, tgi: bool) -> dict[str, Any]:
    """`error` and `code`, and for TGI's clients `error_type`."""
    fields: dict[str, Any] = {"error": error.message, "code": ERROR_STATUS}
    return {**fields, "error_type": typed_error(error)[1].error_type} if tgi else fields
