"""Completions on LMI's routes: a body with `prompt`, as LMI's async handlers take it.

Runs in the worker. Source: LMI's `vllm_async_service`, which hands such a body to vLLM; the answer has OpenAI's shape
and names. Streams are jsonlines unless option.output_formatter says otherwise, as those of chats.
"""

from __future__ import annotations

from typing import Any

from ...config import ModelConfig
from ...core.errors import ServingError
from ..shared.base import Parsed
from ..shared.completion import CompletionFormatter, read_completion
from ..shared.request_body import ignored_header
from .format import error_line


class LmiCompletionFormatter(CompletionFormatter):
    """A completion; an error is LMI's line."""

    def error(self, error: ServingError) -> bytes:
        return self._encode(error_line(error, tgi=self._tgi)) + self._done


def parse_completion(body: dict[str, Any], framing: str, model: ModelConfig) -> Parsed:
    """Read a completion request.

    Raises:
        PayloadError: about the prompt.
        ParameterError: about anything else.
    """
    parsed = read_completion(body, model, must_fit=False)
    formatter = LmiCompletionFormatter(
        framing, parsed, model=model.name, tgi=model.option.tgi_compat, headers=ignored_header(parsed.ignored)
    )
    return Parsed(parsed.requests, formatter)
