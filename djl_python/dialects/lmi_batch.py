"""LMI's dynamic-batch schema, which option.rolling_batch=disable chooses: one or several prompts, a list of texts.

Runs in the worker. Source: LMI's inference schema 0.31, "Dynamic Batch/Static Batch Schema". It is a matter of shapes:
the engine batches continuously, `batch_size` sequences at once, and nobody waits for others' parameters to be alike.
Details and further sequences have no place here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..config import ModelConfig
from ..errors import PayloadError, ServingError
from ..types import Delta, Finish
from .framing import FramedFormatter
from .lmi_format import ERROR_STATUS
from .lmi_parameters import LmiParameters

_NO_PLACE: Final = ("n", "details", "decoder_input_details", "prompt_logprobs", "logprobs", "top_n_tokens")


def batches_dynamically(model: ModelConfig) -> bool:
    """Whether this schema is the model's. TGI's shapes are those of continuous batching."""
    return model.option.rolling_batch == "disable" and not model.option.tgi_compat


def read_prompts(inputs: list[Any]) -> list[str]:
    """The prompts of an array.

    Raises:
        PayloadError: there is none, or one is no text.
    """
    if not inputs:
        raise PayloadError("inputs: expected a string or an array of strings, got an empty one", "inputs")
    for index, prompt in enumerate(inputs):
        if not isinstance(prompt, str) or not prompt:
            got = "an empty one" if prompt == "" else msgspec.json.encode(prompt).decode()[:40]
            raise PayloadError(f"inputs[{index}]: expected a non-empty string, got {got}", f"inputs[{index}]")
    return inputs


def without_details(parameters: LmiParameters) -> tuple[LmiParameters, list[str]]:
    """The parameters that have a meaning here, and the names of the others."""
    asked = [name for name in _NO_PLACE if getattr(parameters, name) not in (None, False, 0)]
    if parameters.n == 1:
        asked.remove("n")
    return msgspec.structs.replace(parameters, **dict.fromkeys(_NO_PLACE)), asked


def failure(error: ServingError) -> dict[str, Any]:
    """The documented error, also as a line of a stream."""
    return {"code": ERROR_STATUS, "message": "invoke handler failure", "error": error.message}


class BatchFormatter(FramedFormatter):
    """A list with an object for each prompt; streamed, lines with a token's text for each.

    A line is written when every prompt that goes on has its next token, so that the lines of a prompt are its tokens,
    one after the other; a prompt that has ended has "".

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
        return self._encode([{"generated_text": self._text(finish)} for finish in self._finishes if finish is not None])

    def error(self, error: ServingError) -> bytes:
        return self._encode(failure(error))

    @staticmethod
    def _is_next_known(texts: deque[str], finish: Finish | None) -> bool:
        return bool(texts) or finish is not None

    def _text(self, finish: Finish) -> str:
        return finish.prompt + finish.text if self._full_text else finish.text
