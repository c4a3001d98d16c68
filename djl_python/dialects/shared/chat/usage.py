"""The token counts of an answer in OpenAI's form. Runs in the worker."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ....core.types import Finish


class CompletionDetails(msgspec.Struct, frozen=True):
    """Which of the completion's tokens were reasoning, the marks around it included."""

    reasoning_tokens: int


class PromptDetails(msgspec.Struct, frozen=True):
    """How many of the prompts' tokens the engine found in its cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Token counts. The completion has details if the model's reasoning is split off; the prompts have details if the
    engine reports its cache's hits.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionDetails | UnsetType = UNSET
    prompt_tokens_details: PromptDetails | UnsetType = UNSET


class UsageCount:
    """Counts the tokens of an answer: each prompt once, however many sequences it has."""

    def __init__(self, sequences_per_prompt: int = 1) -> None:
        self._sequences_per_prompt = sequences_per_prompt
        self._prompts: dict[int, tuple[int, int | None]] = {}  # each one's tokens, and how many were cached
        self._completion_tokens = 0
        self._reasoning_tokens: int | None = None

    def add(self, choice: int, finish: Finish) -> None:
        """Count a sequence that has ended."""
        prompt = choice // self._sequences_per_prompt
        self._prompts[prompt] = finish.prompt_tokens, finish.cached_tokens
        self._completion_tokens += finish.generated_tokens
        if finish.reasoning_tokens is not None:
            self._reasoning_tokens = (self._reasoning_tokens or 0) + finish.reasoning_tokens

    def usage(self) -> Usage:
        """The token counts of the sequences that have ended."""
        prompt_tokens = sum(tokens for tokens, _ in self._prompts.values())
        return Usage(
            prompt_tokens,
            self._completion_tokens,
            prompt_tokens + self._completion_tokens,
            UNSET if self._reasoning_tokens is None else CompletionDetails(self._reasoning_tokens),
            self._prompt_details(),
        )

    def _prompt_details(self) -> PromptDetails | UnsetType:
        known = [cached for _, cached in self._prompts.values() if cached is not None]
        return PromptDetails(sum(known)) if known and len(known) == len(self._prompts) else UNSET
