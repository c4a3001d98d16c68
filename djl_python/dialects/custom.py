"""An answer in the user's own shape: a function of a model.py that is marked `@output_formatter`.

Runs in the worker. The function belongs to the user: what it raises fails this one request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import request_io
from ..errors import ServingError
from ..json_framing import JSON, JSONLINES
from ..types import Delta, Finish, GenerateRequest, Token, TopToken
from .base import Formatter

Shape = Callable[[request_io.TextGenerationOutput], bytes]


class CustomFormatter(Formatter):
    """Calls the user's function once for each token of each prompt's best sequence. Whether to stream, and errors, are
    the dialect's.

    Args:
        shape: the function, through `output_formatter.adapt_output_formatter`.
        inner: what the dialect would answer with.
        requests: one for each prompt.
        parameters: as the client sent them.
        source: what the user's @input_formatter made of the request, where there is one; it has one prompt.
    """

    def __init__(
        self,
        shape: Shape,
        inner: Formatter,
        requests: Sequence[GenerateRequest],
        parameters: Mapping[str, Any],
        *,
        tgi_compat: bool,
        source: request_io.RequestInput | None = None,
    ) -> None:
        self._inner = inner
        self.stream = inner.stream
        self.headers = {**inner.headers, "content-type": JSONLINES if inner.stream else JSON}
        self._prompts: list[_Prompt] = []
        #: Of each choice, which of which prompt's sequences it is.
        self._choices: list[tuple[_Prompt, int]] = []
        for number, request in enumerate(requests):
            given = source or request_io.TextInput(
                request_id=number,
                parameters=dict(parameters),
                input_text=request.prompt if isinstance(request.prompt, str) else None,
                output_formatter=shape,
                tgi_compat=tgi_compat,
            )
            prompt = _Prompt(shape, given, number, request.branching.n)
            self._prompts.append(prompt)
            self._choices += [(prompt, index) for index in range(request.branching.n)]

    def push(self, delta: Delta) -> bytes:
        prompt, index = self._choices[delta.choice]
        last = len(delta.tokens) - 1
        data = b"".join(
            prompt.push(index, token, delta.finish if position == last else None)
            for position, token in enumerate(delta.tokens)
        )
        if self.stream:
            return data
        prompt.held += data
        return b""

    def end(self) -> bytes:
        return b"".join(prompt.held for prompt in self._prompts)

    def error(self, error: ServingError) -> bytes:
        return self._inner.error(error)


class _Prompt:
    """What has come of one prompt, as the user's function sees it.

    The sequence to answer with is the first: the best, or in a stream the first that was drawn. The function is not
    called for the others; its last call waits for them, so that it finds them whole.
    """

    def __init__(self, shape: Shape, source: request_io.RequestInput, number: int, sequences: int) -> None:
        self._shape = shape
        self._open = sequences
        self._output = request_io.TextGenerationOutput(
            request_id=number, input=source, other_sequences_indices=list(range(1, sequences))
        )
        self.held = b""

    def push(self, index: int, token: Token, finish: Finish | None) -> bytes:
        """A token of a sequence, and what the function makes of it."""
        output = self._output
        if finish is not None:
            self._open -= 1
            output.finished = not self._open
            output.prompt_tokens_details = output.prompt_tokens_details or [_token(one) for one in finish.prefill]
        output.set_next_token(
            _token(token),
            index,
            is_last_token=finish is not None,
            finish_reason=None if finish is None else str(finish.reason),
        )
        if token.top:
            output.set_next_top_tokens([_token(top) for top in token.top], index)
        wanted = output.finished or (index == output.best_sequence_index and finish is None)
        return self._shape(output) if wanted else b""


def _token(token: Token | TopToken) -> request_io.Token:
    return request_io.Token(token.id, token.text, token.logprob, token.special or None)
