"""Structured output: computes which tokens may come next where the text must match a grammar. Engine process.

llguidance does the work. `grammar_compiler` compiles grammars beside the steps; the masks of a step's constrained
sequences are computed in parallel. No tensors: a mask is a row of bits.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import time
from collections import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ...core.errors import GenerationError, ParameterError
from ...core.types import FreeText, Grammar, Vocabulary
from ..batch.sequence import GrammarState
from .grammar_gbnf import lark_of
from .grammar_keys import Keys, without_used_up_patterns
from .grammar_limits import MOST_TOKENS, STEP_ALLOWANCE_S, StepBudget, parser_limits
from .grammar_tokens import GrammarTokens

if TYPE_CHECKING:  # imported where it is first needed: most engines never compile a grammar
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

log = logging.getLogger(__name__)

Bits = npt.NDArray[np.int32]

#: Steps whose masks are computed one after the other, so that each sequence is charged for its own.
STEPS_APART: Final = 16
# White space between JSON's tokens: a space, or a new line with its indentation. JSON allows any amount, but a small
# model that has begun to write white space may never stop.
_WHITE_SPACE: Final = r"\x20?|\n\x20{0,20}"

# How llguidance's error begins when no token can come next and the text can't end either.
_NOTHING_FITS: Final = "NoExtension"


class Matcher:
    """A `GrammarState`. Lives as long as its sequence, and stays when that is recomputed."""

    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self._budget = StepBudget()
        self.state: LLMatcher = compiled.beginning.deep_copy()

    @property
    def words(self) -> int:
        """How many 32-bit words a mask has."""
        return self._compiled.words

    def charge(self, cpu_s: float) -> None:
        """Record the cost of the next token's mask, in seconds of a processor."""
        self._budget.charge(cpu_s)

    def accept_token(self, token_id: int) -> bool:
        """Take the drawn token; whether it ended the text.

        Raises:
            GenerationError: the grammar has become too costly to follow, or does not allow this token.
        """
        self._compiled.tokens += 1
        # At a limit llguidance ends the text wherever it is: its mask allows only the end, and consuming that succeeds.
        if self.state.is_error() or not self.state.consume_token(token_id):
            self._compiled.fail()
            raise GenerationError(f"the grammar can't be followed any further: {_reason(self.state.get_error())}")
        if self._budget.spent:
            raise GenerationError(
                "the grammar can't be followed any further: finding out which tokens it allows takes more than "
                f"{STEP_ALLOWANCE_S * 1000:.0f} ms for each"
            )
        return token_id in self._compiled.eos_ids


class CompiledGrammar:
    """A grammar in its initial state, from which every sequence starts. Never advanced.

    Args:
        special: the special tokens by name: other tokens' texts spell none of them.
        lark: a GBNF grammar's translation, if it is known; else "".

    Attributes:
        lark: the translation of a GBNF grammar; "" for others.
        tokens: how many the sequences have taken that started from here.

    Raises:
        ParameterError: the grammar is not valid, or uses a feature that llguidance lacks.
    """

    def __init__(self, tokenizer: LLTokenizer, grammar: Grammar, special: Mapping[str, int], lark: str = "") -> None:
        from llguidance import LLMatcher

        self.tokens = 0
        self._failed = False
        self.words = -(-tokenizer.vocab_size // 32)
        self.eos_ids = frozenset(tokenizer.eos_tokens)
        limits = parser_limits()
        self.lark = lark
        try:
            if grammar.kind == "gbnf":
                self.lark = lark or lark_of(grammar.source)
            definition = _definition(grammar, limits, special, self.lark)
            self.beginning = LLMatcher(tokenizer, definition, log_level=0, limits=limits)
        except ValueError as exc:
            raise _not_valid(str(exc)) from exc
        begun = self.beginning
        if not begun.is_error():
            mask = begun.compute_bitmask()  # the first mask is the costliest: later copies have it already
        if not begun.is_error():
            begun = self._begun(mask)
        if begun.is_error():
            raise _not_valid(begun.get_error())
        for warning in self.beginning.get_grammar_warnings():
            log.warning("grammar: %s", warning)

    @property
    def worn(self) -> bool:
        """Whether sequences have brought the copies' shared memory near its limit."""
        return self._failed or self.tokens > MOST_TOKENS

    def fail(self) -> None:
        """A sequence could not go on."""
        self._failed = True

    def _begun(self, mask: bytes) -> LLMatcher:
        """The grammar after some first token, so that one too large for any step fails now, and not in mid-answer."""
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        first = next((int(token) for token in allowed if int(token) not in self.eos_ids), None)
        begun = self.beginning.deep_copy()
        if first is not None:
            begun.consume_token(first)
        return begun


class MaskComputer:
    """Computes the masks of a step, on several threads if there are several masks, and charges them to their sequences.

    Together, masks can't be charged to the sequence that makes them slow. After a slow step they are computed one after
    the other for some steps.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._apart = 0  # for how many steps to compute one mask after the other

    def masks(self, matchers: abc.Sequence[GrammarState]) -> Bits:
        """Tokens allowed next: (len(matchers), words), a bit each; token 0 has the lowest bit of a row's first word."""
        words = matchers[0].words
        masks = np.zeros((len(matchers), words), np.int32)
        began = time.perf_counter()
        if len(matchers) == 1 or self._apart:
            for matcher, mask in zip(matchers, masks, strict=True):
                cpu = time.thread_time()
                matcher.state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
                matcher.charge(time.thread_time() - cpu)
            self._apart = max(self._apart - 1, 0)
        else:
            states = [(matcher.state, row) for row, matcher in enumerate(matchers)]
            self._executor.unsafe_compute_mask_ptr(states, masks.ctypes.data, words * masks.itemsize, len(states))
        if time.perf_counter() - began > STEP_ALLOWANCE_S:
            self._apart = STEPS_APART
        return masks

    @functools.cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor(self._threads)


def tokenizer_of(vocabulary: Vocabulary, rows: int, eos_ids: frozenset[int]) -> LLTokenizer:
    """A model's tokens as llguidance uses them; `GrammarCompiler` describes the arguments. Takes a second.

    Raises:
        ParameterError: no token ends a text.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    tokens = GrammarTokens(vocabulary, rows, eos_ids)
    return LLTokenizer(TokenizerWrapper(tokens), n_vocab=rows, eos_token=tokens.eos_token_ids)


def special_tokens(vocabulary: Vocabulary, rows: int) -> Mapping[str, int]:
    """The special tokens by name."""
    tokens = vocabulary.tokens
    return {tokens[i].decode(errors="replace"): i for i in vocabulary.special if i < rows}


def forbid(mask: Bits, tokens: list[int]) -> None:
    """Remove tokens from a mask, unless nothing would be left: a grammar's requirements outrank bans."""
    trimmed = mask.copy()
    octets = trimmed.view(np.uint8)
    for token in tokens:
        octets[token >> 3] &= ~np.uint8(1 << (token & 7))
    if trimmed.any():
        mask[:] = trimmed


def _definition(grammar: Grammar, limits: LLParserLimits, special: Mapping[str, int], lark: str) -> str:
    r"""The grammar in llguidance's own form. In regular expressions \d and \w match ASCII, as in JSON schema patterns.

    Raises:
        ValueError: the source is not JSON.
    """
    from llguidance import LLMatcher, regex_to_lark

    if grammar.kind == "gbnf":
        if grammar.before is None:
            return LLMatcher.grammar_from_lark(lark)
        answer = f"%lark {{\n{lark}\n}}"
    elif grammar.kind == "regex":
        answer = f"/{regex_to_lark(grammar.source, 'dw')}/"
        if grammar.before is None:
            return LLMatcher.grammar_from_lark(f"start: {answer}")
    else:
        schema = grammar.source if grammar.kind == "json_schema" else '{"type": "object"}'
        if '"patternProperties"' in schema:
            keys = Keys(_WHITE_SPACE, limits)
            schema = json.dumps(without_used_up_patterns(json.loads(schema), keys), ensure_ascii=False)
        if grammar.before is None:
            return LLMatcher.grammar_from_json_schema(schema, {"whitespace_pattern": _WHITE_SPACE})
        options = {"whitespace_pattern": _WHITE_SPACE}
        answer = f"%json {json.dumps({**json.loads(schema), 'x-guidance': options})}"
    return LLMatcher.grammar_from_lark(f"{_free(grammar.before, special)}\nanswer: {answer}\nSPACE: /\\s*/")


def _free(before: FreeText, special: Mapping[str, int]) -> str:
    """Lark's rules for a text that comes before an `answer`: `start` and what belongs to it.

    The marks of one side are all special tokens or all texts: a family of models has either.
    """
    rules = ["start: SPACE free SPACE answer" + ("" if before.begun else " | answer")]
    opening, closing = _tokens(before.starts, special), _tokens(before.ends, special)
    text = "(?s:.*)"
    if not opening:
        text = f"{_regex(before.starts)}{'?' if before.begun else ''}{text}"
    beginning = f"({opening})" + ("?" if before.begun else "") if opening else ""
    if closing:
        rules += [f"free: {beginning} TEXT ({closing})", f"TEXT: /{text}/"]
    else:
        rules += [f"free: {beginning} text", f"text[suffix=/{_regex(before.ends)}/]: /{text}/"]
    return "\n".join(rules)


def _tokens(marks: abc.Sequence[str], special: Mapping[str, int]) -> str:
    return " | ".join(f"<[{special[mark]}]>" for mark in marks if mark in special)


def _regex(marks: abc.Sequence[str]) -> str:
    return f"({'|'.join(re.escape(mark).replace('/', chr(92) + '/') for mark in marks)})"


def _not_valid(explanation: str) -> ParameterError:
    return ParameterError(f"grammar is not valid: {_reason(explanation)}")


def _reason(explanation: str) -> str:
    """The line of an llguidance error that names the fault; the others show its place, and internal state."""
    if explanation.startswith(_NOTHING_FITS):
        return "no text fits it"
    lines = explanation.strip().splitlines() or ["no reason given"]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
