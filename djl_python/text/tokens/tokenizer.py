"""The tokenizer of a checkpoint: text to ids and back, without torch.

Runs in the worker. The `tokenizers` library reads tokenizer.json directly, and `tokenizer_files` the files beside it;
`pipelines` reimplements transformers' own classes, so that ids equal AutoTokenizer's. A checkpoint that needs more (its
own code, a slow tokenizer, a class that is not reimplemented) goes through transformers' AutoTokenizer, which costs the
import of torch. Everything is immutable once loaded and may be used from any thread.
"""

from __future__ import annotations

import copy
import functools
import logging
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import tokenizers

from ...core.errors import ModelLoadError
from .token_bytes import TokenBytes, token_bytes
from .tokenizer_files import TokenizerFiles, named_templates

log = logging.getLogger(__name__)

#: Encoded before a bad word, to get the word's tokens as they are within a text and not at its beginning.
_MID_TEXT = "\n"
_INCOMPLETE = "\ufffd"


#: An id and the characters it covers, text[start:stop].
Span = tuple[int, int, int]
#: Models' name of the argument that says to which of two texts a token belongs.
_TYPE_IDS: Final = "token_type_ids"
#: The tokens of one text or two in a sequence: ids, type ids, the text of each (None: a special token that the
#: tokenizer has added), the characters of that text that it covers, and the number of its word there (None: unknown).
Sequenced = tuple[list[int], list[int], list[int | None], list[tuple[int, int]], list[int | None]]


class Backend(Protocol):
    """Encodes and decodes: a `tokenizers.Tokenizer` with its added tokens, or a slow tokenizer."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def spans(self, text: str, add_special_tokens: bool) -> list[Span]: ...

    def encode_texts(self, text: str, pair: str | None, add_special_tokens: bool) -> Sequenced: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str: ...

    def id_to_token(self, token_id: int) -> str | None: ...

    def token_to_id(self, token: str) -> int | None: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def takes_spaces(self) -> bool: ...

    @property
    def decoder(self) -> Any:
        """The `tokenizers` decoder, or None."""
        ...

    @property
    def definition(self) -> str: ...


class Tokenizer:
    """Text to ids and back.

    Attributes:
        vocab_size: number of tokens, added ones included. The model's logits may have more columns (padding).
        special_ids: ids that `skip_special_tokens` leaves out.
        takes_spaces: whether a token may absorb all the space beside it, however much there is.
        eos_ids: ids that end a generation, from generation_config.json, config.json or the tokenizer.
        special_tokens: `bos_token`, `eos_token` … by name, as chat templates see them.
        chat_templates: templates by name; the usual one is "default".
        token_bytes: id -> the UTF-8 bytes it stands for in the middle of a text, or None where the tokenizer can
            only decode whole sequences.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        eos_ids: Iterable[int] = (),
        has_type_ids: bool = False,
    ) -> None:
        self._backend = backend
        self._has_type_ids = has_type_ids
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self.vocab_size = backend.vocab_size
        self.special_ids = backend.special_ids
        self.takes_spaces = backend.takes_spaces
        self.eos_ids = frozenset(eos_ids)
        self.token_bytes: TokenBytes | None = token_bytes(backend.decoder, backend.id_to_token)

    @classmethod
    def load(cls, path: Path, *, trust_remote_code: bool = False) -> Tokenizer:
        """The tokenizer of the checkpoint in directory `path`. Reads files: do not call it in the event loop.

        Raises:
            ModelLoadError: the directory has no tokenizer, or a broken file; the message names it and the fault.
        """
        files = TokenizerFiles.read(path)
        if (loaded := files.backend()) is None:
            return _from_transformers(path, files, trust_remote_code)
        backend, special, has_type_ids = loaded
        return cls(
            FastBackend(backend),
            special_tokens=special,
            chat_templates=files.chat_templates,
            eos_ids=files.eos_ids or _id(backend.token_to_id(special.get("eos_token", ""))),
            has_type_ids=has_type_ids,
        )

    @property
    def definition(self) -> str:
        """The tokenizer as tokenizer.json has it; "" if it is written in Python."""
        return self._backend.definition

    @functools.cached_property
    def longest_token(self) -> int:
        """Bytes of the vocabulary's longest entry, and so the most tokens that a token can become when it is cut."""
        entries = (self.id_to_token(token_id) or "" for token_id in range(self.vocab_size))
        return max(len(entry.encode()) for entry in entries)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, with the tokenizer's special tokens (e.g. BOS) if `add_special_tokens`."""
        return self._backend.encode(text, add_special_tokens)

    def spans(self, text: str, add_special_tokens: bool = True) -> list[Span]:
        """The ids of `encode`, each with the characters of `text` that it covers: (id, start, stop).

        A token that is part of a character covers the whole character; one that the tokenizer adds covers nothing.
        """
        return self._backend.spans(text, add_special_tokens)

    def encode_texts(self, text: str, pair: str | None = None, add_special_tokens: bool = True) -> Sequenced:
        """One text, or two in one sequence, as models read them whole.

        Returns:
            (ids, type ids, the text of each token, the characters that it covers, the number of its word in that
            text). The type ids are zeros where the tokenizer's `model_input_names` lack them, since
            transformers gives such a model none. A token has no word (None) where it is special, or the tokenizer is
            written in Python.
        """
        ids, type_ids, texts, spans, words = self._backend.encode_texts(text, pair, add_special_tokens)
        return ids, type_ids if self._has_type_ids else [0] * len(ids), texts, spans, words

    def showing(self, tokens: Iterable[str]) -> Tokenizer:
        """A copy of the tokenizer that treats these special tokens as ordinary text."""
        tokenizer = copy.copy(self)
        tokenizer.special_ids = self.special_ids - {self.token_to_id(token) for token in tokens}
        return tokenizer

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """Text of `ids`. Spaces are never "cleaned up": that is impossible in a stream."""
        return self._backend.decode(ids, skip_special_tokens, spaces_between_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary entry of an id, e.g. "Ġhello"; None: the vocabulary has no such id."""
        return self._backend.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        """The id of a vocabulary entry."""
        return self._backend.token_to_id(token)

    def join(self, tokens: Sequence[str]) -> str:
        """The text of vocabulary entries, or of words in their place."""
        decoder = self._backend.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    def name_of(self, token_id: int) -> tuple[str, bytes | None]:
        """A token's name, the same wherever it stands: its text in the middle of a text, with U+FFFD for incomplete
        characters; and its bytes if it has such, else None (also where they are unknown).
        """
        if self.token_bytes is None:
            return self._backend.decode([token_id], False, True), None
        text = self.token_bytes.texts[token_id]
        if text is not None:
            return text, None
        partial = self.token_bytes[token_id]
        return partial.decode(errors="replace"), partial

    def bad_words(self, words: Collection[str]) -> tuple[tuple[int, ...], ...]:
        """The ids of each of `words` wherever it may be: first in a text, after a space, within a word."""
        if not words:
            return ()
        sequences: dict[tuple[int, ...], None] = {}
        before = self.encode(_MID_TEXT, add_special_tokens=False)
        for word in words:
            for text in (word, f" {word}"):
                sequences[tuple(self.encode(text, add_special_tokens=False))] = None
            within = self.encode(_MID_TEXT + word, add_special_tokens=False)
            if within[: len(before)] == before:
                sequences[tuple(within[len(before) :])] = None
        sequences.pop((), None)
        return tuple(sequences)


class FastBackend:
    """A `tokenizers.Tokenizer`."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self.vocab_size = int(backend.get_vocab_size(with_added_tokens=True))
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.takes_spaces = any(token.lstrip or token.rstrip for token in added.values())

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # Without offsets, which are not needed here: a fifth less time.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def spans(self, text: str, add_special_tokens: bool) -> list[Span]:
        # Other threads can run while a list of texts is encoded, but not while a single text is.
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        starts = {start for start, _ in encoding.offsets}

        def end(start: int, stop: int) -> int:
            # If a normalizer composes characters, the offsets cover only the first of them.
            while start < stop < len(text) and stop not in starts and unicodedata.combining(text[stop]):
                stop += 1
            return stop

        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [(token_id, start, end(start, stop)) for token_id, (start, stop) in pairs]

    def encode_texts(self, text: str, pair: str | None, add_special_tokens: bool) -> Sequenced:
        whole: Any = text if pair is None else (text, pair)
        (encoding,) = self._backend.encode_batch([whole], add_special_tokens=add_special_tokens)
        return encoding.ids, encoding.type_ids, encoding.sequence_ids, encoding.offsets, encoding.word_ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def id_to_token(self, token_id: int) -> str | None:
        return self._backend.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    @property
    def decoder(self) -> Any:
        return self._backend.decoder

    @property
    def definition(self) -> str:
        return str(self._backend.to_str())


class SlowBackend:
    """A transformers tokenizer that is written in Python; the only kind with spaces_between_special_tokens."""

    def __init__(self, slow: Any) -> None:
        self._slow = slow
        self.vocab_size = len(slow)
        self.special_ids = frozenset(slow.all_special_ids)
        self.takes_spaces = True
        self.decoder = None
        self.definition = ""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self._slow.encode(text, add_special_tokens=add_special_tokens))

    def spans(self, text: str, add_special_tokens: bool) -> list[Span]:
        """Find the spans by decoding longer and longer prefixes; a token whose text is not in `text` covers nothing."""
        spans: list[Span] = []
        decoded, cursor, parts = "", 0, list[int]()
        ids = self.encode(text, add_special_tokens)
        for position, token_id in enumerate(ids):
            parts.append(token_id)
            longer = self.decode(ids[: position + 1], False, True)
            if longer.endswith(_INCOMPLETE) and position + 1 < len(ids):
                continue  # a part of a character: it covers what the character's last part covers
            piece = longer[len(decoded) :].strip()
            at = text.find(piece, cursor) if piece else -1
            start, stop = (cursor, cursor) if at < 0 else (at, at + len(piece))
            spans += [(part, start, stop) for part in parts]
            decoded, cursor, parts = longer, stop, []
        return spans

    def encode_texts(self, text: str, pair: str | None, add_special_tokens: bool) -> Sequenced:
        texts = [text] if pair is None else [text, pair]
        encoding = self._slow(*texts, add_special_tokens=add_special_tokens, return_token_type_ids=True)
        spans = [span for part in texts for span in self.spans(part, add_special_tokens=False)]
        own = [number for number, part in enumerate(texts) for _ in self.encode(part, add_special_tokens=False)]
        ids, at = encoding["input_ids"], 0
        places: list[int | None] = []
        covered: list[tuple[int, int]] = []
        for token_id in ids:
            is_own = at < len(spans) and spans[at][0] == token_id
            places.append(own[at] if is_own else None)
            covered.append(spans[at][1:] if is_own else (0, 0))
            at += is_own
        return ids, encoding["token_type_ids"], places, covered, [None] * len(ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        return str(
            self._slow.decode(
                list(ids),
                skip_special_tokens=skip_special_tokens,
                spaces_between_special_tokens=spaces_between_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )

    def id_to_token(self, token_id: int) -> str | None:
        token = self._slow.convert_ids_to_tokens(token_id)
        return None if token is None else str(token)

    def token_to_id(self, token: str) -> int | None:
        token_id = self._slow.convert_tokens_to_ids(token)
        return None if token_id is None or token_id == self._slow.unk_token_id else int(token_id)


def _from_transformers(path: Path, files: TokenizerFiles, trust_remote_code: bool) -> Tokenizer:
    log.info("%s: the tokenizer is loaded by transformers (its class is not one of the usual ones)", path)
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as exc:
        if not files.tokenizer:
            message = f"{path}: there is no tokenizer (no tokenizer.json, and transformers finds none: {exc})"
        else:
            message = f"{path}: the tokenizer can't be loaded by transformers: {exc}"
        raise ModelLoadError(message) from exc
    fast = getattr(loaded, "backend_tokenizer", None)
    if fast is not None:
        fast.no_truncation()
        fast.no_padding()
    made = Tokenizer(
        SlowBackend(loaded) if fast is None else FastBackend(fast),
        special_tokens={key: str(value) for key, value in loaded.special_tokens_map.items() if isinstance(value, str)},
        chat_templates=files.chat_templates or named_templates(loaded.chat_template, path),
        eos_ids=files.eos_ids or _id(loaded.eos_token_id),
        has_type_ids=_TYPE_IDS in loaded.model_input_names,
    )
    if made.vocab_size <= len(made.special_ids):  # without files, transformers makes one of these
        raise ModelLoadError(f"{path}: there is no tokenizer (no tokenizer.json, and transformers finds no vocabulary)")
    return made


def _id(value: int | None) -> tuple[int, ...]:
    return () if value is None else (value,)
