"""LMI's dynamic-batch schema, chosen by option.rolling_batch=disable: one or several prompts in, a list of texts out.

Runs in the worker. Source: LMI's inference schema 0.31, "Dynamic Batch/Static Batch Schema". Only the shapes differ:
the engine batches continuously, `batch_size` sequences at once, and prompts with different parameters share a batch.
The schema has no place for details and further sequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...config import ModelConfig
from ...core.errors import PayloadError, ServingError
from ...core.types import Delta, Finish
from ..shared.framing import FramedFormatter
from ..shared.request_body import shown
from .format import ERROR_STATUS
from .parameters import LmiParameters

_NO_PLACE: Final = ("n", "details", "decoder_input_details", "prompt_logprobs", "logprobs", "top_n_tokens")


def batches_dynamically(model: ModelConfig) -> bool:
    """Whether the model has this schema. option.tgi_compat has only the shapes of continuous batching."""
    return model.option.rolling_batch == "disable" and not model.option.tgi_compat


def read_prompts(inputs: list[Any]) -> list[str]:
    """The prompts of an array.

    Raises:
        PayloadError: the array is empty, or one of its items is not a non-empty string.
    """
    if not inputs:
        raise PayloadError("inputs: expected a string or an array of strings, got an empty one", "inputs")
    for index, prompt in enumerate(inputs):
        if not isinstance(prompt, str) or not prompt:
            got = "an empty one" if prompt == "" else shown(prompt)
            raise PayloadError(f"inputs[{index}]: expected a non-empty string, got {got}", f"inputs[{index}]")
    return inputs


def without_details(parameters: LmiParameters) -> tuple[LmiParameters, list[str]]:
    """The parameters that this schema supports, and the names of the other given ones."""
    asked = [name for name in _NO_PLACE if getattr(parameters, name) not in (None, False, 0)]
    if parameters.n == 1:
        asked.remove("n")
    return msgspec.structs.replace(parameters, **dict.fromkeys(_NO_PLACE)), asked


def failure(error: ServingError) -> dict[str, Any]:
    """The documented error object, for a whole body and for a line of a stream."""
    return {"code": ERROR_STATUS, "message": "invoke handler failure", "error": error.message}


class BatchFormatter(FramedFormatter):
    """A list with an object for each prompt; in a stream, lines with one token's text for each prompt.

    A line is written when every unfinished prompt has its next token, so that each line has the next token of every
    prompt; a finished prompt has "".

    Args:
        framing: json, jsonlines or sse; the last two stream.
        prompts: how many there are; each has one sequence.
        return_full_text: whether a text begins with its prompt; not in a stream.
        headers: further response headers.
    """

    shows_logprobs = False

    def __init__(self, framing: str, prompts: int, *, return_full_text: bool, headers: Mapping[str, str]) -> None:
        super().__init__(framing, headers)
        self._full_text = return_full_text
        self._texts: list[deque[str]] = [deque() for _ in range(prompts)]
        self._finishes: list[Finish | None] = [None] * prompts
        self._errors: dict[int, ServingError] = {}
        self.isolates = not self.stream

    def push(self, delta: Delta) -> bytes:
        if delta.finish is not None:
            self._finishes[delta.choice] = delta.finish
        if not self.stream:
            return b""
        self._texts[delta.choice].extend(token.text for token in delta.tokens)
        lines = []
        while any(self._texts) and all(map(self._is_next_known, self._texts, self._finishes)):
            lines.append(self._encode({"outputs": [texts.popleft() if texts else "" for texts in self._texts]}))
        return b"".join(lines)

    def end(self) -> bytes:
        if self.stream:
            return b""
        return self._encode([self._item(index) for index in range(len(self._finishes))])

    def fail_item(self, index: int, error: ServingError) -> None:
        self._errors[index] = error

    def error(self, error: ServingError) -> bytes:
        return self._encode(failure(error))

    @staticmethod
    def _is_next_known(texts: deque[str], finish: Finish | None) -> bool:
        return bool(texts) or finish is not None

    def _item(self, index: int) -> dict[str, Any]:
        """The answer to one prompt, or its error."""
        if (error := self._errors.get(index)) is not None:
            return failure(error)
        finish = self._finishes[index]
        assert finish is not None
        return {"generated_text": self._text(finish)}

    def _text(self, finish: Finish) -> str:
        return finish.prompt + finish.text if self._full_text else finish.text
