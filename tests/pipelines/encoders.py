"""Small encoders with random weights, whose tokens are words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL: Final = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS: Final = "the cat sat on a mat and saw two birds who where is it".split()


def build_encoder(path: Path, head: str, **settings: Any) -> Path:
    """Save a BERT with this head (`BertForMaskedLM`, ...); the same one every time."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names).save_pretrained(path)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,
        **settings,
    )
    torch.manual_seed(5)
    getattr(transformers, head)(config).save_pretrained(path)
    return path


def build_translator(path: Path, **settings: Any) -> Path:
    """Save a T5 with the same tokenizer."""
    build_encoder(path, "BertModel")
    config = transformers.T5Config(
        vocab_size=len(SPECIAL) + len(WORDS),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        pad_token_id=0,
        eos_token_id=3,
        decoder_start_token_id=0,
        **settings,
    )
    torch.manual_seed(5)
    transformers.T5ForConditionalGeneration(config).save_pretrained(path)
    return path
