"""The texts of requests as sequences of tokens: with their prompts, within the model's length. Runs in the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from djl_python.core.errors import ParameterError, TextLengthError
from djl_python.core.text_tasks import Granularity, TextInput
from djl_python.ipc.encodings import EncoderInput
from djl_python.text.tokens.long_texts import PIECE_CHARS
from djl_python.text.tokens.sequences import Shortened, TokenSequence, fewest_tokens, sequence_of
from djl_python.text.tokens.tokenizer import Tokenizer

from .checkpoint import EncoderCheckpoint

#: Characters of a text that are read for each token that is kept of it: no usual word has as many in a token.
_CHARS_PER_TOKEN: Final = 64
#: A text with more for each is cut before it is read with others, as a query is with each document.
_LONG_CHARS_PER_TOKEN: Final = 8
#: Tokens that stay beyond those that are kept: the last ones may become others at the cut.
_SPARE_TOKENS: Final = 8


Side = Literal["left", "right"]


@dataclass(frozen=True)
class ReadText:
    """A text, or a pair, as the model reads it.

    Attributes:
        sequence: its tokens.
        text, pair: the tokenized texts: with the prompt, lower-cased where the checkpoint wants that, and cut.
        start: how many characters were cut off before `text`.
        unpooled: tokens of the prompt, with the special one before it.
    """

    sequence: TokenSequence
    text: str
    pair: str | None
    unpooled: int = 0
    start: int = 0

    def input(self, granularity: Granularity, positions: list[int] | None = None) -> EncoderInput:
        """The engine's input for it."""
        types = self.sequence.type_ids
        return EncoderInput(
            self.sequence.ids, types if any(types) else [], granularity, positions or [], unpooled=self.unpooled
        )


class Texts:
    """Reads the texts of requests.

    Args:
        limit: most tokens of a sequence.
    """

    def __init__(self, tokenizer: Tokenizer, checkpoint: EncoderCheckpoint, limit: int) -> None:
        self.tokenizer = tokenizer
        self.limit = limit
        self._checkpoint = checkpoint
        self._sentence = checkpoint.sentence
        self._ends: dict[tuple[str, int, Side], str] = {}

    def of_request(self) -> Texts:
        """The same for one request, whose long texts are cut once, however many they are read with."""
        return Texts(self.tokenizer, self._checkpoint, self.limit)

    def read(self, given: TextInput, shortened: Shortened = "longest") -> ReadText:
        """The sequence of a text or a pair.

        Raises:
            TextLengthError: it has more tokens than it may have, and the request does not let it be cut.
            ParameterError: the checkpoint has no such prompt, or the text has no tokens.
        """
        most = self.limit if given.max_tokens is None else min(self.limit, given.max_tokens)
        if given.ids is not None:
            self._check_ids(given.ids, given.field)
            return self._fitting(_of_ids(given.ids), given, most, shortened, "", None)
        prompt = self._prompt(given) if given.pair is None else ""
        text, pair = self._prepared(prompt + given.text), None if given.pair is None else self._prepared(given.pair)
        start = 0
        if given.truncate:
            whole, text = text, self._end(text, most, given.truncate)
            start = len(whole) - len(text) if given.truncate == "left" else 0
            pair = None if pair is None else self._end(pair, most, given.truncate)
        elif (least := fewest_tokens(self.tokenizer, [text, pair or ""], most)) > most:
            raise TextLengthError(least, most, given.field, at_least=True)
        sequence = sequence_of(self.tokenizer, text, pair, add_special_tokens=given.add_special_tokens)
        unpooled = 0
        if prompt and not self._sentence.modules.includes_prompt:
            alone = sequence_of(self.tokenizer, prompt, None, add_special_tokens=given.add_special_tokens)
            unpooled = max(0, len(alone) - (given.add_special_tokens and alone.texts[-1] is None))
        return self._fitting(sequence, given, most, shortened, text, pair, unpooled, start)

    def _end(self, text: str, tokens: int, side: Side) -> str:
        """The part of a long text that surely has so many tokens, at the end that stays."""
        if len(text) <= _LONG_CHARS_PER_TOKEN * tokens:
            return text
        key = (text, tokens, side)
        if key not in self._ends:
            self._ends[key] = self._cut(text, tokens, side)
        return self._ends[key]

    def _cut(self, text: str, tokens: int, side: Side) -> str:
        chars = max(PIECE_CHARS, _CHARS_PER_TOKEN * tokens)
        part = text[:chars] if side == "right" else text[-chars:]
        sequence, kept = sequence_of(self.tokenizer, part, None, add_special_tokens=False), tokens + _SPARE_TOKENS
        if len(sequence) <= kept:
            return part
        if side == "right":  # up to the end of a word
            stop = part.find(" ", sequence.spans[kept - 1][1])
            cut = part if stop < 0 else part[:stop]
        else:
            cut = part[part.rfind(" ", 0, sequence.spans[-kept][0] + 1) + 1 :]
        # Tokenizers in Python know the places of some tokens only.
        return cut if len(sequence_of(self.tokenizer, cut, None, add_special_tokens=False)) >= tokens else part

    def _fitting(
        self,
        sequence: TokenSequence,
        given: TextInput,
        most: int,
        shortened: Shortened,
        text: str,
        pair: str | None,
        unpooled: int = 0,
        start: int = 0,
    ) -> ReadText:
        if len(sequence) > most:
            if not given.truncate:
                raise TextLengthError(len(sequence), most, given.field)
            sequence = sequence.cut(most, given.truncate, shortened)
        if not sequence.ids:
            raise ParameterError(
                f"{given.field}: expected a text that has tokens, got {given.text[:60]!r}", given.field
            )
        if len(sequence) > most:
            raise ParameterError(
                f"{given.field}: {most} tokens have no room for a text: {len(sequence)} are special", given.field
            )
        return ReadText(sequence, text, pair, unpooled, start)

    def _check_ids(self, ids: tuple[int, ...], field: str) -> None:
        size = self.tokenizer.vocab_size
        if (wrong := next((token_id for token_id in ids if token_id >= size), None)) is not None:
            raise ParameterError(f"{field}: expected token ids below {size}, got {wrong}", field)

    def _prompt(self, given: TextInput) -> str:
        prompts = self._sentence.prompts
        name = self._sentence.default_prompt if given.prompt_name is None else given.prompt_name
        if given.prompt_name is not None and name not in prompts:
            expected = ", ".join(prompts) or "none: the model has no prompts (config_sentence_transformers.json)"
            raise ParameterError(f"prompt_name: there is no prompt {name!r}; expected {expected}", "prompt_name")
        return prompts.get(name, "")

    def _prepared(self, text: str) -> str:
        return text.lower() if self._sentence.lower_case else text


def _of_ids(ids: tuple[int, ...]) -> TokenSequence:
    """Token ids from a client: any of them may be cut."""
    return TokenSequence(list(ids), [0] * len(ids), [0] * len(ids), [(0, 0)] * len(ids), [None] * len(ids))
