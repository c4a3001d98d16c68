"""A small mBART with random weights, whose tokenizer writes a language before a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.encoder_decoders import build_encoder_decoder

LANGUAGES: Final = ("en_XX", "fr_XX", "__de__")
_SPECIAL: Final = ("<pad>", "</s>", "<s>", "<unk>")
_WORDS: Final = tuple("the cat sat on a mat and saw two birds le chat un oiseau die Katze".split())
VOCABULARY: Final = {token: number for number, token in enumerate((*_SPECIAL, *LANGUAGES, *_WORDS))}


def write_tokenizer(path: Path, single: str = "en_XX $A </s>") -> None:
    """Save the tokenizer, which writes texts as the template `single` says."""
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    written = [(token, VOCABULARY[token]) for token in ("en_XX", "</s>") if token in single]
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=written)
    names = dict(zip(("pad_token", "eos_token", "bos_token", "unk_token"), _SPECIAL, strict=True))
    languages: Any = {"additional_special_tokens": list(LANGUAGES)}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names, **languages).save_pretrained(path)


def build_translator(path: Path) -> Path:
    """Save the model, which answers in English unless it is told otherwise, and its tokenizer."""
    build_encoder_decoder(path, "mbart", forced_bos_token_id=VOCABULARY["en_XX"], vocab_size=len(VOCABULARY))
    write_tokenizer(path)
    return path
