"""The tokens that ask a checkpoint for what is between two texts (fill-in-the-middle). Runs in the worker."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

#: What stands before the first text, between the two, and after the second, as Qwen and CodeGemma, StarCoder and
#: Granite, SantaCoder, and DeepSeek have it.
_KNOWN: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


class _Token(msgspec.Struct, frozen=True):
    content: str = ""


class _Config(msgspec.Struct, frozen=True):
    """The part of tokenizer_config.json that has the added tokens."""

    added_tokens_decoder: dict[str, _Token] = {}


class _Tokenizer(msgspec.Struct, frozen=True):
    """The part of tokenizer.json that has the added tokens."""

    added_tokens: list[_Token] = []


def infill_tokens(path: Path) -> tuple[str, str, str] | None:
    """The three tokens of a checkpoint; None: its vocabulary has no known set."""
    added = set(_added_tokens(path))
    return next((tokens for tokens in _KNOWN if added.issuperset(tokens)), None)


def _added_tokens(path: Path) -> Iterable[str]:
    config, tokenizer = _Config(), _Tokenizer()
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # whoever needs the file says so
        config = msgspec.json.decode((path / "tokenizer_config.json").read_bytes(), type=_Config)
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        tokenizer = msgspec.json.decode((path / "tokenizer.json").read_bytes(), type=_Tokenizer)
    return [token.content for token in (*config.added_tokens_decoder.values(), *tokenizer.added_tokens)]
