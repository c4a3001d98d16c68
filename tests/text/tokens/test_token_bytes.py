"""What tokens are as bytes is what their decoder makes of them; a decoder that looks at more than a token has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Regex, decoders, pre_tokenizers

from djl_python.core.types import TextOptions
from djl_python.text.tokens.detokenizer import ByteDetokenizer
from djl_python.text.tokens.token_bytes import token_bytes

SPACE, BYTES, FUSE, STRIP = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1)
TEXTS = [
    ["▁a", "▁▁", "b▁c"],
    ["a", "▁b"],
    ["▁", "▁a"],
    ["<0x20>", "<0xe2>", "<0x82>", "<0xAC>", "<0x4>", "<0xAC", "<0x41>x", "▁x"],
    ["Ġa", "Ã", "©", "ĊĠ", "é€"],
    [*sorted(pre_tokenizers.ByteLevel.alphabet()), "a"],
]


def sequence(*steps: Any) -> Any:
    return decoders.Sequence(list(steps))


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.ByteLevel(),
        decoders.Metaspace(prepend_scheme="always"),
        decoders.Metaspace(prepend_scheme="first"),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.Metaspace("Ġ"),
        sequence(SPACE, BYTES, FUSE, STRIP),
        sequence(SPACE, BYTES, FUSE),
        sequence(SPACE, decoders.Replace("a", "▁"), FUSE, decoders.Strip(" ", 3)),
        decoders.Fuse(),
    ],
    ids=str,
)
def test_a_text_is_the_bytes_of_its_tokens(decoder: Any) -> None:
    for tokens in TEXTS:
        bytes_of = token_bytes(decoder, dict(enumerate(tokens)).get)
        assert bytes_of is not None
        reader: Any = SimpleNamespace(token_bytes=bytes_of, special_ids=frozenset())
        detokenizer = ByteDetokenizer(reader, [], TextOptions())
        assert "".join(detokenizer.push(i) for i in range(len(tokens) + 1)) == decoder.decode(tokens)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        sequence(SPACE, BYTES),
        sequence(BYTES, SPACE, FUSE),
        sequence(SPACE, BYTES, STRIP, FUSE),
        sequence(SPACE, FUSE, decoders.Strip("x", 1)),
        sequence(SPACE, FUSE, decoders.Strip(" ", 0, 1)),
        sequence(decoders.Replace(Regex("▁+"), " "), FUSE),
        sequence(decoders.ByteLevel(), FUSE, decoders.WordPiece()),
    ],
    ids=str,
)
def test_tokenizers_that_change_joined_tokens_have_no_token_bytes(decoder: Any) -> None:
    assert token_bytes(decoder, str) is None
