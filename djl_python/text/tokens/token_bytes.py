"""The bytes that one token contributes to a text.

Runs in the worker. With nearly every tokenizer a text is the concatenation of its tokens' bytes, except at the very
beginning, where spaces may be stripped. Such tokenizers decode exactly, token by token, with a dict look-up each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(dict[int, bytes]):
    """id -> bytes, computed on first use. An id without a token (a padded vocabulary) has b"".

    Attributes:
        strip: how many spaces the decoder strips from the beginning of a whole text.
        texts: id -> the bytes as text; None if they are not whole characters.
    """

    def __init__(self, id_to_token: Callable[[int], str | None], to_bytes: Callable[[str], bytes], strip: int) -> None:
        super().__init__()
        self._id_to_token = id_to_token
        self._to_bytes = to_bytes
        self.strip = strip
        self.texts = _Texts(self)

    def __missing__(self, token_id: int) -> bytes:
        data = self[token_id] = self.of(token_id)
        return data

    def of(self, token_id: int) -> bytes:
        """The token's bytes, without caching: for a caller that needs each token once."""
        token = self._id_to_token(token_id)
        return b"" if token is None else self._to_bytes(token)


class _Texts(dict[int, str | None]):
    """id -> its bytes decoded as UTF-8; None if they are not whole characters."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        super().__init__()
        self._bytes = token_bytes

    def __missing__(self, token_id: int) -> str | None:
        text: str | None = None
        with suppress(UnicodeDecodeError):
            text = self._bytes[token_id].decode()
        self[token_id] = text
        return text


def token_bytes(decoder: Any, id_to_token: Callable[[int], str | None]) -> TokenBytes | None:
    """The TokenBytes of a `tokenizers` decoder; None if a text is not the concatenation of its tokens."""
    if decoder is None:
        return None
    description = json.loads(decoder.__getstate__())
    steps = description["decoders"] if description["type"] == "Sequence" else [description]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return TokenBytes(id_to_token, _from_byte_level, 0)
    if [step["type"] for step in steps] == ["Metaspace"]:
        marker = steps[0]["replacement"]
        strip = 0 if steps[0].get("prepend_scheme") == "never" else 1
        return TokenBytes(id_to_token, lambda token: token.replace(marker, " ").encode(), strip)
    return _pieces(steps, id_to_token)


def _pieces(steps: list[dict[str, Any]], id_to_token: Callable[[int], str | None]) -> TokenBytes | None:
    """SentencePiece's decoder: Replace*, ByteFallback, Fuse, Strip (of the left side, after Fuse)."""
    replacements: list[tuple[str, str]] = []
    fallback, fused, strip = False, False, 0
    for step in steps:
        kind = step["type"]
        if kind == "Replace" and not fallback and "String" in step["pattern"]:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "ByteFallback":
            fallback = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and step["content"] == " " and not step["stop"]:
            strip = step["start"]
        else:
            return None
    if not fused:
        return None

    def to_bytes(token: str) -> bytes:
        if fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return TokenBytes(id_to_token, to_bytes, strip)


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the rest is shifted past U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    for offset, byte in enumerate(byte for byte in range(256) if byte not in printable):
        alphabet[chr(0x100 + offset)] = byte
    return alphabet


_ALPHABET = _byte_level_alphabet()


def bytes_of_entry(entry: str) -> bytes:
    """The bytes of a vocabulary's entry that is a part of a character, in SentencePiece's form or GPT-2's; else b""."""
    if byte := _BYTE_TOKEN.fullmatch(entry):
        return bytes([int(byte[1], 16)])
    return bytes([_ALPHABET[char] for char in entry]) if set(entry) <= _ALPHABET.keys() else b""


def _from_byte_level(token: str) -> bytes:
    """A token's bytes. With a character outside the alphabet (only added tokens have them), its own text in UTF-8."""
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()
