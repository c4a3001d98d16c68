"""An answer in the user's own shape: a function of a model.py that is marked `@output_formatter`.

Runs in the worker. The function belongs to the user: what it raises fails this one request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import request_io
from ..errors import ServingError
from ..output_formatter import JSON, JSONLINES
from ..types import Delta, Finish, GenerateRequest, Token, TopToken
from .base import Formatter

Shape = Callable[[request_io.TextGenerationOutput], bytes]


class CustomFormatter(Formatter):
    """Calls the user's function once for each token. Whether to stream, and errors, are the dialect's.

    Args:
        shape: the function, through `output_formatter.adapt_output_formatter`.
        inner: what the dialect would answer with.
        parameters: as the client sent them.
        source: what the user's @input_formatter made of the request, where there is one.
    """

    def __init__(
        self,
        shape: Shape,
        inner: Formatter,
        request: GenerateRequest,
        parameters: Mapping[str, Any],
        *,
        tgi_compat: bool,
        source: request_io.RequestInput | None = None,
    ) -> None:
        self._shape = shape
        self._inner = inner
        self.stream = inner.stream
        self.headers = {**inner.headers, "content-type": JSONLINES if inner.stream else JSON}
        self._input = source or request_io.TextInput(
            parameters=dict(parameters),
            input_text=request.prompt if isinstance(request.prompt, str) else None,
            output_formatter=shape,
            tgi_compat=tgi_compat,
        )
        self._output = request_io.TextGenerationOutput(request_id=0, input=self._input)
        self._open = request.branching.n
        self._held = b""

    def push(self, delta: Delta) -> bytes:
        last = len(delta.tokens) - 1
        data = b"".join(
            self._piece(delta.choice, token, delta.finish if position == last else None)
            for position, token in enumerate(delta.tokens)
        )
        if self.stream:
            return data
        self._held += data
        return b""

    def end(self) -> bytes:
        return self._held

    def error(self, error: ServingError) -> bytes:
        return self._inner.error(error)

    def _piece(self, choice: int, token: Token, finish: Finish | None) -> bytes:
        output = self._output
        if finish is not None:
            self._open -= 1
            output.finished = not self._open
            output.prompt_tokens_details = [_token(prompt_token) for prompt_token in finish.prefill]
        output.set_next_token(
            _token(token),
            choice,
            is_last_token=finish is not None,
            finish_reason=None if finish is None else str(finish.reason),
        )
        if token.top:
            output.set_next_top_tokens([_token(top) for top in token.top], choice)
        return self._shape(output)


def _token(token: Token | TopToken) -> request_io.Token:
    return request_io.Token(token.id, token.text, token.logprob, token.special or None)
