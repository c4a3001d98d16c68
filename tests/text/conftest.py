"""Small tokenizers of every kind, as checkpoint directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from djl_python.text.tokens.pipelines import QWEN2_PATTERN
from djl_python.text.tokens.tokenizer import Tokenizer

CORPUS = [
    "Deep learning is a kind of machine learning, isn't it? It's 2024 and we've 12345 ideas.",
    "The quick brown fox jumps over the lazy dog.\n\n  def f(x):\n\treturn x + 1  # a comment",
    "Größe, naïve café, Ελληνικά, русский язык, 日本語と中文, 한국어",
    "a hello world hello there, world of words and more words",
] * 8

TEXTS = [
    "Hello world",
    " leading space",
    "trailing space  ",
    "a  b   c\n\n\td",
    "It's naïve: café №5, 3.14 and 12345",
    "日本語と中文 한국어",
    "emoji 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 end",
    "before<|end|>after <|end|> x",
    "before</s>after <s>x</s> y",
    "e\u0301 combining, ﬁ ligature, \u00a0nbsp",
    "x",
    " ",
]


def byte_level(special: list[str]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=special,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def qwen2() -> tokenizers.Tokenizer:
    tokenizer = byte_level(["<|endoftext|>", "<|end|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def llama3() -> tokenizers.Tokenizer:
    tokenizer = byte_level(["<|begin|>", "<|end|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 0)]
    )
    return tokenizer


def llama2() -> tokenizers.Tokenizer:
    special = ["<unk>", "<s>", "</s>"]
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special + fallback, limit_alphabet=60, show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab=model["vocab"],
            merges=[tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens(special)
    # As converted long ago: every stretch of text gets a prefix space, not only the first.
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def gemma() -> tokenizers.Tokenizer:
    tokenizer = llama2()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def word_piece() -> tokenizers.Tokenizer:
    """Not a language model's, but a decoder that is no concatenation of bytes."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def added(content: str, *, special: bool = True) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"__type": "AddedToken", "content": content, **flags, "special": special}


#: A class's default names are added to the vocabulary by transformers where they are missing; these are all there.
GEMMA_UNKNOWN = dict.fromkeys(("unk_token", "pad_token", "mask_token"), "<unk>")

Kind = tuple[Callable[[], tokenizers.Tokenizer], dict[str, Any], dict[str, Any]]

#: name -> (tokenizer.json, tokenizer_config.json, config.json)
KINDS: dict[str, Kind] = {
    "byte-level": (
        lambda: byte_level(["<|endoftext|>", "<|end|>"]),
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"},
        {"model_type": "llama"},
    ),
    "gpt2": (
        lambda: byte_level(["<|endoftext|>", "<|end|>"]),
        {
            "tokenizer_class": "GPT2Tokenizer",
            "eos_token": "<|endoftext|>",
            "added_tokens_decoder": {"0": added("<|endoftext|>"), "1": added("<|end|>")},
        },
        {"model_type": "gpt2"},
    ),
    "gpt-neox": (
        llama3,
        {
            "tokenizer_class": "GPTNeoXTokenizerFast",
            "bos_token": "<|begin|>",
            **dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|end|>"),
        },
        {"model_type": "gpt_neox"},
    ),
    "qwen2": (
        qwen2,
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "eos_token": "<|end|>",
            "pad_token": "<|endoftext|>",
            "add_prefix_space": False,
            "added_tokens_decoder": {"0": added("<|endoftext|>"), "1": added("<|end|>")},
            "additional_special_tokens": ["<|extra|>"],
        },
        {"model_type": "qwen2"},
    ),
    "llama3": (
        llama3,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin|>",
            "eos_token": "<|end|>",
            "add_bos_token": False,  # a fast tokenizer's template decides, not this
            "clean_up_tokenization_spaces": True,
            "added_tokens_decoder": {
                "0": added("<|begin|>"),
                "1": added("<|end|>"),
                "600": added("<tool>", special=False),
            },
        },
        {"model_type": "llama", "eos_token_id": [1, 0]},
    ),
    "llama3-misnamed": (
        llama3,
        {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"},
        {"model_type": "llama"},
    ),
    "llama2": (
        llama2,
        {
            "tokenizer_class": "LlamaTokenizer",
            "bos_token": added("<s>"),  # as older checkpoints write it
            "eos_token": added("</s>"),
            "unk_token": added("<unk>"),
            "legacy": False,
            "add_bos_token": True,
        },
        {"model_type": "llama"},
    ),
    "llama2-legacy": (
        llama2,
        {
            "tokenizer_class": "LlamaTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "legacy": True,
            "added_tokens_decoder": {"0": added("<unk>"), "1": added("<s>"), "2": added("</s>")},
        },
        {"model_type": "llama"},
    ),
    "mistral": (
        llama2,
        {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        {"model_type": "mistral"},
    ),
    "gemma": (
        gemma,
        {"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>", "eos_token": "</s>", **GEMMA_UNKNOWN},
        {"model_type": "gemma2"},
    ),
    "unigram": (
        unigram,
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
        {"model_type": "llama"},
    ),
    "word-piece": (
        word_piece,
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]", "unk_token": "[UNK]"},
        {"model_type": "llama"},
    ),
}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind as a directory."""
    root = tmp_path_factory.mktemp("checkpoints")
    paths = {}
    for name, (build, config, model_config) in KINDS.items():
        paths[name] = root / name
        paths[name].mkdir()
        build().save(str(paths[name] / "tokenizer.json"))
        (paths[name] / "tokenizer_config.json").write_text(json.dumps(config))
        (paths[name] / "config.json").write_text(json.dumps(model_config))
    return paths


@pytest.fixture(scope="session")
def loaded(checkpoints: dict[str, Path]) -> dict[str, Tokenizer]:
    """Every kind, loaded."""
    return {name: Tokenizer.load(path) for name, path in checkpoints.items()}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tokenizer(kind: str, loaded: dict[str, Tokenizer]) -> Tokenizer:
    """Each kind in turn."""
    return loaded[kind]
