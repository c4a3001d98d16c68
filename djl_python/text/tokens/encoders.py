"""The pipelines of encoders' tokenizer classes in transformers: BERT's, RoBERTa's, XLM-RoBERTa's, and their kin.

Runs in the worker. Each takes the vocabulary of tokenizer.json; BERT's also takes the lines of vocab.txt.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

#: (the tokenizer of tokenizer.json, tokenizer_config.json): sets normalizer, pre-tokenizer and decoder.
Pipeline = Callable[[Tokenizer, Mapping[str, Any]], None]
#: (the tokenizer, tokenizer_config.json, the special tokens by name): sets what is put around texts.
Ends = Callable[[Tokenizer, Mapping[str, Any], Mapping[str, str]], None]


@dataclass(frozen=True)
class TokenizerClass:
    """A tokenizer class of transformers.

    Attributes:
        defaults: its special tokens by name, where a checkpoint names none.
        ends: None: those of tokenizer.json.
        has_type_ids: whether it tells the two texts of a pair apart, where a checkpoint does not say it.
        reads_lines: whether its vocabulary may be the lines of vocab.txt.
    """

    pipeline: Pipeline
    defaults: Mapping[str, str] = field(default_factory=dict)
    ends: Ends | None = None
    has_type_ids: bool = False
    reads_lines: bool = False


def of_lines(vocabulary: str) -> Tokenizer:
    """The tokenizer of a vocab.txt: a token a line."""
    lines = vocabulary.removesuffix("\n").split("\n")
    return Tokenizer(models.WordPiece({line.rstrip(): number for number, line in enumerate(lines)}))


def _bert(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    unknown = config.get("unk_token") or "[UNK]"
    tokenizer.model = models.WordPiece(
        tokenizer.get_vocab(with_added_tokens=False),
        unk_token=unknown if isinstance(unknown, str) else unknown["content"],
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),
        lowercase=bool(config.get("do_lower_case", True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")


def _roberta(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    tokenizer.model.fuse_unk = False
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space")))
    tokenizer.decoder = decoders.ByteLevel()


def _xlm_roberta(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    if not isinstance(tokenizer.model, models.Unigram):
        raise TypeError(f"expected a Unigram model, got {type(tokenizer.model).__name__}")
    tokenizer.normalizer = _precompiled(tokenizer)
    scheme = "always" if config.get("add_prefix_space", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)


def _precompiled(tokenizer: Tokenizer) -> normalizers.Normalizer | None:
    """SentencePiece's table of characters, the one part of the file's normalizer that the class keeps."""
    if tokenizer.normalizer is None:
        return None
    state = json.loads(tokenizer.normalizer.__getstate__())
    for one in state.get("normalizers", [state]):
        if one.get("type") == "Precompiled" and one.get("precompiled_charsmap"):
            return normalizers.Precompiled(base64.b64decode(one["precompiled_charsmap"]))
    return None


def _bert_ends(tokenizer: Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    if (ends := _numbered(tokenizer, special, "cls_token", "sep_token")) is not None:
        (begin, _), (end, _) = ends
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin}:0 $A:0 {end}:0", pair=f"{begin}:0 $A:0 {end}:0 $B:1 {end}:1", special_tokens=ends
        )


def _mpnet_ends(tokenizer: Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    if (ends := _numbered(tokenizer, special, "cls_token", "sep_token")) is not None:
        tokenizer.post_processor = processors.RobertaProcessing(
            ends[1], ends[0], trim_offsets=True, add_prefix_space=False
        )


def _roberta_ends(tokenizer: Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    if (ends := _numbered(tokenizer, special, "cls_token", "sep_token")) is not None:
        tokenizer.post_processor = processors.RobertaProcessing(
            ends[1],
            ends[0],
            trim_offsets=bool(config.get("trim_offsets", True)),
            add_prefix_space=bool(config.get("add_prefix_space")),
        )


def _xlm_roberta_ends(tokenizer: Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    if (ends := _numbered(tokenizer, special, "bos_token", "eos_token")) is not None:
        (begin, _), (end, _) = ends
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[begin, "$A", end], pair=[begin, "$A", end, end, "$B", end], special_tokens=ends
        )


def _numbered(tokenizer: Tokenizer, special: Mapping[str, str], *names: str) -> list[tuple[str, int]] | None:
    """(token, id) of special tokens; None: the vocabulary lacks one of them, and the file's own ends stay."""
    numbered = []
    for name in names:
        text = special.get(name, "")
        number = tokenizer.token_to_id(text)
        if number is None:
            return None
        numbered.append((text, number))
    return numbered


_BERT_TOKENS: Final = {
    **{"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]"},
    **{"cls_token": "[CLS]", "mask_token": "[MASK]"},
}
_ROBERTA_TOKENS: Final = {
    **{"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"},
    **{"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"},
}
#: Class name (without "Fast") -> the class.
ENCODERS: Final[Mapping[str, TokenizerClass]] = {
    "BertTokenizer": TokenizerClass(_bert, _BERT_TOKENS, _bert_ends, has_type_ids=True, reads_lines=True),
    "DistilBertTokenizer": TokenizerClass(_bert, _BERT_TOKENS, _bert_ends, reads_lines=True),
    "MPNetTokenizer": TokenizerClass(_bert, {**_ROBERTA_TOKENS, "unk_token": "[UNK]"}, _mpnet_ends, reads_lines=True),
    "RobertaTokenizer": TokenizerClass(_roberta, _ROBERTA_TOKENS, _roberta_ends),
    "XLMRobertaTokenizer": TokenizerClass(_xlm_roberta, _ROBERTA_TOKENS, _xlm_roberta_ends),
}
