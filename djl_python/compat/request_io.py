"""What the user's `@input_formatter` returns and `@output_formatter` is given, with the attributes LMI documents.

Runs in the worker. These classes are for the user's code: internally, this project uses `types.GenerateRequest`,
`types.Token` and `types.Finish`. Source: LMI's "Custom output formatter schema" and "Custom input formatter schema".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Token:
    """One token. `error_msg` is for tokens of the user's that stand for an error: the server makes none.

    `request_id` is that of the output which the token belongs to; None for a token of none.
    """

    id: int
    text: str
    log_prob: float | None = None
    special_token: bool | None = None
    error_msg: str | None = None
    request_id: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """LMI's token object."""
        shape: dict[str, Any] = {"id": self.id, "text": self.text, "log_prob": self.log_prob}
        if self.special_token:
            shape["special_token"] = True
        if self.error_msg:
            shape["error_msg"] = self.error_msg
        return shape

    def as_tgi_dict(self) -> dict[str, Any]:
        """TGI's token object."""
        return {"id": self.id, "text": self.text, "logprob": self.log_prob, "special": bool(self.special_token)}


@dataclass
class Sequence:
    """The tokens of one generation so far, and an iterator over them that the formatter advances.

    `top_tokens` holds, for each token, the alternatives at its position, where they were requested. `finish_reason` is
    None until the last token is there. `stop_reason` is the stop sequence that ended the generation.
    """

    tokens: list[Token] = field(default_factory=list)
    top_tokens: list[list[Token]] = field(default_factory=list)
    cumulative_log_prob: float = 0.0
    finish_reason: str | None = None
    stop_reason: str | None = None
    _read: int = field(default=0, init=False, repr=False)
    _top_read: int = field(default=0, init=False, repr=False)
    _last: int | None = field(default=None, init=False, repr=False)

    def set_next_token(self, token: Token, is_last_token: bool = False) -> None:
        """Append a token."""
        self.tokens.append(token)
        self.cumulative_log_prob += token.log_prob or 0.0
        if is_last_token:
            self._last = len(self.tokens) - 1

    def set_next_top_tokens(self, top_tokens: list[Token]) -> None:
        """Append the alternatives at the next position."""
        self.top_tokens.append(top_tokens)

    def has_next_token(self) -> bool:
        """Whether `get_next_token` has a token."""
        return self._read < len(self.tokens)

    def get_next_token(self) -> tuple[Token | None, bool, bool]:
        """Advance and return (token, is it the first, is it the last); (None, False, False) before the first token."""
        if not self.has_next_token():
            return None, False, False
        at = self._read
        self._read += 1
        return self.tokens[at], at == 0, at == self._last

    def get_last_token(self) -> Token | None:
        """The last token of a finished sequence, or None."""
        return None if self._last is None else self.tokens[self._last]

    def has_next_top_tokens(self) -> bool:
        """Whether `get_next_top_tokens` has alternatives."""
        return self._top_read < len(self.top_tokens)

    def get_next_top_tokens(self) -> list[Token] | None:
        """Advance, and return the alternatives at the next position; None where there are none yet."""
        if not self.has_next_top_tokens():
            return None
        self._top_read += 1
        return self.top_tokens[self._top_read - 1]


@dataclass
class RequestInput:
    """A request as the user's formatters see it.

    `parameters` are the client's. `server_parameters` are for the user's functions: the server sets a copy of them.
    """

    request_id: int = 0
    output_formatter: Callable[..., Any] | str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    server_parameters: dict[str, Any] = field(default_factory=dict)
    tgi_compat: bool = False


@dataclass
class TextInput(RequestInput):
    """A request to generate text. Subclass it to carry fields of your own to the output formatter.

    An input formatter may give `input_ids` instead of a text; an output formatter finds those that the model was given.
    """

    input_text: str | None = None
    input_ids: list[int] = field(default_factory=list)
    adapters: Any = None
    tokenizer: Any = None

    def prompt_tokens_length(self) -> int:
        """How many tokens the prompt has."""
        return len(self.input_ids)


@dataclass
class RequestOutput:
    """The output of a request so far. `finished` is true from the last token on."""

    request_id: int
    input: RequestInput
    finished: bool = False


@dataclass
class TextGenerationOutput(RequestOutput):
    """The output of a request to generate text so far.

    `sequences` are by index; `best_sequence_index` is the one to answer with; `prompt_tokens_details` are the prompt's
    tokens, where they were requested.
    """

    sequences: dict[int, Sequence] = field(default_factory=dict)
    best_sequence_index: int = 0
    prompt_tokens_details: list[Token] = field(default_factory=list)
    other_sequences_indices: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequences.setdefault(self.best_sequence_index, Sequence())

    @property
    def prompt_text(self) -> str:
        """The prompt, where it is text."""
        return (self.input.input_text or "") if isinstance(self.input, TextInput) else ""

    @property
    def text(self) -> str:
        """The generated text so far, after the prompt if the request has return_full_text."""
        text = "".join(token.text for token in self.sequences[self.best_sequence_index].tokens)
        return self.prompt_text + text if self.input.parameters.get("return_full_text") else text

    def set_next_token(
        self,
        token: Token,
        sequence_index: int = 0,
        is_last_token: bool = False,
        finish_reason: str | None = None,
    ) -> None:
        """Append a token to a sequence."""
        if token.request_id is None:
            token.request_id = self.request_id
        sequence = self.sequences.setdefault(sequence_index, Sequence())
        sequence.set_next_token(token, is_last_token)
        if finish_reason is not None:
            sequence.finish_reason = finish_reason

    def set_next_top_tokens(self, top_tokens: list[Token], sequence_index: int = 0) -> None:
        """Append the alternatives at the next position of a sequence."""
        self.sequences[sequence_index].set_next_top_tokens(top_tokens)

    def set_best_sequence_index(self, sequence_index: int) -> None:
        """Choose the sequence to answer with."""
        self.best_sequence_index = sequence_index

    def set_finish_reason(self, finish_reason: str, sequence_index: int = 0) -> None:
        """Say why a sequence ended."""
        self.sequences[sequence_index].finish_reason = finish_reason

    def get_tokens_as_dict(self, sequence_index: int = 0) -> list[dict[str, Any]]:
        """The tokens of a sequence, in the shape of the request's API."""
        return [self._shape(token) for token in self.sequences[sequence_index].tokens]

    def get_prompt_tokens_as_dict(self) -> list[dict[str, Any]]:
        """The prompt's tokens, in the shape of the request's API."""
        return [self._shape(token) for token in self.prompt_tokens_details]

    def get_top_tokens_as_dict(self, sequence_index: int = 0) -> list[list[dict[str, Any]]]:
        """The alternatives at each position of a sequence, in the shape of the request's API."""
        return [[self._shape(token) for token in top] for top in self.sequences[sequence_index].top_tokens]

    def _shape(self, token: Token) -> dict[str, Any]:
        return token.as_tgi_dict() if self.input.tgi_compat else token.as_dict()
