"""Structured output: computes which tokens may come next where the text must match a grammar. Engine process.

llguidance does the work; only this module uses it. Grammars are compiled in a thread of their own, so that the steps of
other sequences do not wait for one, and the masks of a step's constrained sequences are computed in parallel. No
tensors: a mask is a row of bits.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Many
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ...core.errors import GenerationError, ParameterError
from ...core.types import FreeText, Grammar, Vocabulary
from ..batch.sequence import GrammarState
from .grammar_keys import Keys, without_used_up_patterns
from .grammar_tokens import GrammarTokens

if TYPE_CHECKING:  # imported where it is first needed: most engines never compile a grammar
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

log = logging.getLogger(__name__)

Bits = npt.NDArray[np.int32]

CACHED_GRAMMARS: Final = 128
# llguidance's measure of how large a grammar may become at its beginning. An enum of 5,000 words takes half of it. With
# five times as much, llguidance's own limit, a dozen characters ("(a{600}){500}") make a grammar of 100 MB, which the
# cache keeps, and whose mask keeps a whole batch waiting for a tenth of a second, in every step.
_MOST_EXPRESSIONS: Final = 200_000
# White space between JSON's tokens: a space, or a new line with its indentation. JSON allows any amount, but a small
# model that has begun to write white space may never stop.
_WHITE_SPACE: Final = r"\x20?|\n\x20{0,20}"

# How llguidance's error begins when no token can come next and the text can't end either.
_NOTHING_FITS: Final = "NoExtension"


class Matcher:
    """A `GrammarState`. Lives as long as its sequence, and stays when that is recomputed."""

    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self.state: LLMatcher = compiled.beginning.deep_copy()

    @property
    def words(self) -> int:
        """How many 32-bit words a mask has."""
        return self._compiled.words

    def advance(self, token_id: int) -> bool:
        """Take the token that was drawn, and tell whether it ended the text.

        Raises:
            GenerationError: the grammar has become too costly to follow, or does not allow this token.
        """
        # At a limit llguidance ends the text wherever it is: its mask allows only the end, and consuming that succeeds.
        if self.state.is_error() or not self.state.consume_token(token_id):
            raise GenerationError(f"the grammar can't be followed any further: {_reason(self.state.get_error())}")
        return token_id in self._compiled.eos_ids


class CompiledGrammar:
    """A grammar in its initial state, from which every sequence starts. Never advanced.

    Args:
        special: the special tokens by name: no text of the others spells one.

    Raises:
        ParameterError: the grammar is not valid, or uses a feature that llguidance lacks.
    """

    def __init__(self, tokenizer: LLTokenizer, grammar: Grammar, special: Mapping[str, int]) -> None:
        from llguidance import LLMatcher, LLParserLimits

        self.words = -(-tokenizer.vocab_size // 32)
        self.eos_ids = frozenset(tokenizer.eos_tokens)
        limits = LLParserLimits(initial_lexer_fuel=_MOST_EXPRESSIONS)
        try:
            self.beginning = LLMatcher(tokenizer, _definition(grammar, limits, special), log_level=0, limits=limits)
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

    def _begun(self, mask: bytes) -> LLMatcher:
        """The grammar after some first token, so that one too large for any step fails now, and not in mid-answer."""
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        first = next((int(token) for token in allowed if int(token) not in self.eos_ids), None)
        begun = self.beginning.deep_copy()
        if first is not None:
            begun.consume_token(first)
        return begun


class GrammarCompiler:
    """Compiles grammars for one model; caches the most recent results, errors too.

    Args:
        rows: rows of the model's embedding, which can be more than the tokenizer has tokens, or fewer.
        eos_ids: tokens that end a text; without any, the tokenizer's own.
    """

    def __init__(self, rows: int, eos_ids: frozenset[int]) -> None:
        self._rows = rows
        self._eos_ids = eos_ids
        self._vocabulary = Vocabulary([], [], [])
        self._compiled: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()
        self._thread: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")

    def know(self, vocabulary: Vocabulary) -> None:
        """The model's tokens; needed before the first grammar."""
        self._vocabulary = vocabulary

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Start to compile a grammar, or find it in the cache.

        The future raises ParameterError where the grammar is broken, or the model has no tokenizer for it.
        """
        found = self._compiled.get(grammar)
        if found is None:
            found = self._compiled[grammar] = self._thread.submit(self._compile, grammar)
            if len(self._compiled) > CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return found

    def close(self) -> None:
        """Stop compiling."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        tokenizer = self._tokenizer
        try:
            return CompiledGrammar(tokenizer, grammar, self._special)
        except ParameterError as refusal:
            raise refusal.with_traceback(None) from None  # the cache keeps it, and frames would keep the grammar

    @functools.cached_property
    def _special(self) -> Mapping[str, int]:
        tokens = self._vocabulary.tokens
        return {tokens[i].decode(errors="replace"): i for i in self._vocabulary.special if i < self._rows}

    @functools.cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        tokens = GrammarTokens(self._vocabulary, self._rows, self._eos_ids)
        return LLTokenizer(TokenizerWrapper(tokens), n_vocab=self._rows, eos_token=tokens.eos_token_ids)


class MaskComputer:
    """Computes the masks of a step, on several threads if there are several masks."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def masks(self, matchers: Many[GrammarState]) -> Bits:
        """Tokens allowed next: (len(matchers), words), a bit each; token 0 has the lowest bit of a row's first word."""
        words = matchers[0].words
        masks = np.zeros((len(matchers), words), np.int32)
        if len(matchers) == 1:
            matchers[0].state.unsafe_compute_mask_ptr(masks.ctypes.data, masks.nbytes)
        else:
            states = [(matcher.state, row) for row, matcher in enumerate(matchers)]
            self._executor.unsafe_compute_mask_ptr(states, masks.ctypes.data, words * masks.itemsize, len(states))
        return masks

    @functools.cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor(self._threads)


def forbid(mask: Bits, tokens: list[int]) -> None:
    """Take tokens out of a mask, unless nothing would be left: what a grammar requires outranks what is forbidden."""
    trimmed = mask.copy()
    octets = trimmed.view(np.uint8)
    for token in tokens:
        octets[token >> 3] &= ~np.uint8(1 << (token & 7))
    if trimmed.any():
        mask[:] = trimmed


def _definition(grammar: Grammar, limits: LLParserLimits, special: Mapping[str, int]) -> str:
    r"""The grammar in llguidance's own form. In regular expressions \d and \w match ASCII, as in JSON schema patterns.

    Raises:
        ValueError: the source is not JSON.
    """
    from llguidance import LLMatcher, regex_to_lark

    if grammar.kind == "regex":
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

    The marks of one side are special tokens or texts, not some of both: a family of models has either.
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


def _tokens(marks: Many[str], special: Mapping[str, int]) -> str:
    return " | ".join(f"<[{special[mark]}]>" for mark in marks if mark in special)


def _regex(marks: Many[str]) -> str:
    return f"({'|'.join(re.escape(mark).replace('/', chr(92) + '/') for mark in marks)})"


def _not_valid(explanation: str) -> ParameterError:
    return ParameterError(f"grammar is not valid: {_reason(explanation)}")


def _reason(explanation: str) -> str:
    """The line of an llguidance explanation that says what is wrong; the others show where, and internal state."""
    if explanation.startswith(_NOTHING_FITS):
        return "no text fits it"
    lines = explanation.strip().splitlines() or ["no reason given"]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
