"""A prompt as the engine gets it, and how its answer is read. Runs in the worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from djl_python.core.sequence_request import AnyImages
from djl_python.core.types import DecoderTokens, GenerateRequest, Grammar
from djl_python.text.reasoning import ReasoningParser
from djl_python.text.stop import StopSequences
from djl_python.text.tokens.tokenizer import Tokenizer
from djl_python.text.tools.parser import ToolParser


@dataclass(frozen=True)
class Prepared:
    """One prompt, ready for the engine.

    `index` is its place among the request's prompts, `number` that of its first sequence in the answer.
    `request.sampling` is complete. `text` is the prompt as the model sees it; its images are in `images`. `tokenizer`
    decodes the answer. `new_parser` makes the parser of one sequence's tool calls, `new_reasoning` that of its
    reasoning, which comes before them. `answer_form` is the grammar of an answer that calls no tool: the model begins
    without it, and so decides whether it calls one. `closing_mark` are the ids that end a reasoning which has used up
    its budget. `stops` are the compiled stop sequences of all sequences of the prompt. For an encoder-decoder model the
    prompt is in `encoder_ids`, and `ids` are what its decoder begins with; `decoder` says how it ends.
    """

    request: GenerateRequest
    ids: list[int]
    text: str
    tokenizer: Tokenizer
    new_parser: Callable[[], ToolParser] | None = None
    new_reasoning: Callable[[], ReasoningParser] | None = None
    answer_form: Grammar | None = None
    images: AnyImages | None = None
    stops: StopSequences | None = None
    index: int = 0
    number: int = 0
    closing_mark: tuple[int, ...] = ()
    encoder_ids: list[int] = dataclasses.field(default_factory=list)
    decoder: DecoderTokens | None = None

    @property
    def prompt_ids(self) -> list[int]:
        """The ids of the prompt, which are the encoder's if there is one."""
        return self.encoder_ids or self.ids

    @property
    def has_grammar(self) -> bool:
        """Whether an answer may have to match a grammar."""
        return self.request.sampling.grammar is not None or self.answer_form is not None
