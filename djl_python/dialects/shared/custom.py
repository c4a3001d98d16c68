"""An answer in the user's own shape, made by the `@output_formatter` function of a model.py.

Runs in the worker. The function is the user's code: an exception in it fails this one request.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from ...compat import request_io
from ...core.errors import ServingError
from ...core.types import Delta, Finish, GenerateRequest, Token, TopToken
from ...formats.json_framing import JSON, JSONLINES, SSE, encode_finite_json
from .base import Formatter

Shape = Callable[[request_io.TextGenerationOutput], bytes]
#: Maps a whole response, or a chunk of a stream, to an object, or to text that is sent unchanged.
Reshape = Callable[[Any], Any]

_EVENT: Final = b"data:"


class ResponseFormatter(Formatter):
    """Calls the user's function with the response that the dialect's own formatter makes: with the whole, or with each
    chunk of a stream. For a list of objects, it is called with each of them.

    Args:
        reshape: the user's function, adapted by `output_formatter.adapt_response_formatter`.
        inner: the dialect's own formatter.
    """

    def __init__(self, reshape: Reshape, inner: Formatter) -> None:
        self._reshape = reshape
        self._inner = inner
        self._is_sse = inner.headers.get("content-type", "").startswith(SSE)
        self.stream = inner.stream
        self.headers = inner.headers
        self.keep_alive = inner.keep_alive
        self.shows_logprobs = inner.shows_logprobs

    def prepared(self, prompt_ids: Sequence[list[int]], *, splits_reasoning: bool) -> None:
        self._inner.prepared(prompt_ids, splits_reasoning=splits_reasoning)

    def push(self, delta: Delta) -> bytes:
        return self._chunks(self._inner.push(delta))

    def end(self) -> bytes:
        data = self._inner.end()
        return self._chunks(data) if self.stream else self._reshaped(data)

    def error(self, error: ServingError) -> bytes:
        return self._inner.error(error)

    def _chunks(self, data: bytes) -> bytes:
        """The chunks of a stream, each reshaped in its line or event; [DONE] and comments stay as they are."""
        return b"".join(self._line(line) for line in data.splitlines(keepends=True))

    def _line(self, line: bytes) -> bytes:
        content = line.rstrip(b"\r\n")
        before = b""
        if self._is_sse:
            if not content.startswith(_EVENT):
                return line
            value = content.removeprefix(_EVENT).lstrip(b" ")
            before, content = content[: len(content) - len(value)], value
        if not content.startswith((b"{", b"[{")):
            return line
        return before + self._reshaped(content) + line[len(line.rstrip(b"\r\n")) :]

    def _reshaped(self, data: bytes) -> bytes:
        response = msgspec.json.decode(data)
        if isinstance(response, list):
            made: Any = [self._reshape(element) for element in response]
        else:
            made = self._reshape(response)
        if isinstance(made, str):
            return made.encode()
        return made if isinstance(made, bytes) else encode_finite_json(made)


class CustomFormatter(Formatter):
    """Calls the user's function once for each token of each prompt's best sequence. The dialect's own formatter decides
    whether to stream, and the shape of errors.

    Args:
        shape: the user's function, adapted by `output_formatter.adapt_output_formatter`.
        inner: the dialect's own formatter.
        requests: one for each prompt.
        parameters: as the client sent them.
        tokenizer: transformers' own, which the function finds in the output's input.
        numbers: gives each prompt its request_id.
        source: the result of the user's @input_formatter, if there is one; the request then has one prompt.
    """

    def __init__(
        self,
        shape: Shape,
        inner: Formatter,
        requests: Sequence[GenerateRequest],
        parameters: Mapping[str, Any],
        *,
        tgi_compat: bool,
        tokenizer: Any = None,
        numbers: Iterator[int] | None = None,
        source: request_io.RequestInput | None = None,
    ) -> None:
        self._inner = inner
        self.stream = inner.stream
        self.headers = {**inner.headers, "content-type": JSONLINES if inner.stream else JSON}
        self._prompts: list[_Prompt] = []
        #: For each choice, its prompt and the index of its sequence within the prompt.
        self._choices: list[tuple[_Prompt, int]] = []
        for request, number in zip(requests, numbers or itertools.count(), strict=False):
            given = source or request_io.TextInput(
                parameters=dict(parameters),
                input_text=request.prompt if isinstance(request.prompt, str) else None,
                output_formatter=shape,
                adapters=request.adapter or None,
            )
            given.request_id, given.tgi_compat = number, tgi_compat
            given.server_parameters = given.server_parameters or dict(given.parameters)
            if isinstance(given, request_io.TextInput):
                given.tokenizer = given.tokenizer or tokenizer
            prompt = _Prompt(shape, given, number, request.branching.n)
            self._prompts.append(prompt)
            self._choices += [(prompt, index) for index in range(request.branching.n)]

    def prepared(self, prompt_ids: Sequence[list[int]], *, splits_reasoning: bool) -> None:
        for prompt, ids in zip(self._prompts, prompt_ids, strict=True):
            prompt.tokenized(ids)

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
    """The output for one prompt so far, as the user's function sees it.

    The answer is the first sequence: the best, or in a stream the first that was drawn. The function is not called for
    the other sequences; its last call waits until they are complete.
    """

    def __init__(self, shape: Shape, source: request_io.RequestInput, number: int, sequences: int) -> None:
        self._shape = shape
        self._open = sequences
        self._output = request_io.TextGenerationOutput(
            request_id=number, input=source, other_sequences_indices=list(range(1, sequences))
        )
        self.held = b""

    def tokenized(self, ids: list[int]) -> None:
        """Let the function see the prompt's token ids."""
        if isinstance(self._output.input, request_io.TextInput):
            self._output.input.input_ids = ids

    def push(self, index: int, token: Token, finish: Finish | None) -> bytes:
        """Add a token of a sequence; the bytes that the function makes of it, b"" if it is not called."""
        output = self._output
        if finish is not None:
            self._open -= 1
            output.finished = not self._open
            output.prompt_tokens_details = output.prompt_tokens_details or [_token(token) for token in finish.prefill]
        output.set_next_token(
            _token(token),
            index,
            is_last_token=finish is not None,
            finish_reason=None if finish is None else str(finish.reason),
        )
        if finish is not None:
            output.sequences[index].stop_reason = finish.stop
        if token.top:
            output.set_next_top_tokens([_token(top) for top in token.top], index)
        wanted = output.finished or (index == output.best_sequence_index and finish is None)
        return self._shape(output) if wanted else b""


def _token(token: Token | TopToken) -> request_io.Token:
    return request_io.Token(token.id, token.text, token.logprob, token.special or None)
