"""Encoders' tokenizers: ids, type ids and special tokens equal AutoTokenizer's, without transformers or torch."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from djl_python.core.errors import ModelLoadError
from djl_python.text.tokens.tokenizer import Tokenizer
from tests.text.conftest import CORPUS, TEXTS, byte_level

BERT: Final = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA: Final = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ODD: Final = [
    *TEXTS,
    "ÀÉÎÕÜ àéîõü Ångström İstanbul ẞ",
    "Café CAFE\u0301 naïve",
    "東京は日本の首都です。漢字kanji",
    "Hello[MASK]world [CLS] x [SEP]",
    "a <mask> b</s>c",
    "tab\tnew\nline\r\u200b\u200d\ufeff\x00\x07",
    "supercalifragilisticexpialidocious" * 4,
    "don't  e-mail: a.b@c.de, $1,000.50!",
    "ﬁﬂ Ⅷ ① \uff46\uff55\uff4c\uff4c",
]


def word_piece(special: list[str], *, lowercase: bool = True) -> tokenizers.Tokenizer:
    """As BERT's, whose file says nothing of what the class sets."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=260, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentence_piece() -> tokenizers.Tokenizer:
    """As XLM-RoBERTa's."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=ROBERTA, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


Kind = tuple[Callable[[], tokenizers.Tokenizer], Mapping[str, Any], Mapping[str, Any]]
#: name -> (tokenizer.json, tokenizer_config.json, config.json)
KINDS: Final[Mapping[str, Kind]] = {
    "bert": (functools.partial(word_piece, BERT), {"tokenizer_class": "BertTokenizer"}, {"model_type": "bert"}),
    "bert-cased": (
        functools.partial(word_piece, BERT),  # what the file says of case does not count
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        {"model_type": "bert"},
    ),
    "bert-without-class": (functools.partial(word_piece, BERT), {"do_lower_case": True}, {"model_type": "bert"}),
    "bert-with-accents": (
        functools.partial(word_piece, BERT),
        {"tokenizer_class": "BertTokenizer", "strip_accents": False, "tokenize_chinese_chars": False},
        {"model_type": "bert"},
    ),
    "distilbert": (
        functools.partial(word_piece, BERT),
        {"tokenizer_class": "DistilBertTokenizer"},
        {"model_type": "distilbert"},
    ),
    "electra": (functools.partial(word_piece, BERT), {}, {"model_type": "electra"}),
    "mpnet": (
        functools.partial(word_piece, ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]),
        {"tokenizer_class": "MPNetTokenizer"},
        {"model_type": "mpnet"},
    ),
    "roberta": (
        functools.partial(byte_level, ROBERTA),
        {"tokenizer_class": "RobertaTokenizer"},
        {"model_type": "roberta"},
    ),
    "roberta-with-space": (
        functools.partial(byte_level, ROBERTA),
        {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True, "trim_offsets": False},
        {"model_type": "roberta"},
    ),
    "xlm-roberta": (sentence_piece, {"tokenizer_class": "XLMRobertaTokenizer"}, {"model_type": "xlm-roberta"}),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A directory for each kind, and one whose vocabulary is vocab.txt."""
    folder = tmp_path_factory.mktemp("encoders")
    paths = {}
    for name, (make, config, model_config) in KINDS.items():
        paths[name] = path = folder / name
        path.mkdir()
        make().save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        (path / "config.json").write_text(json.dumps(model_config))
    paths["bert-lines"] = path = folder / "bert-lines"
    path.mkdir()
    tokens = json.loads((paths["bert"] / "tokenizer.json").read_text())["model"]["vocab"]
    (path / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(tokens, key=tokens.__getitem__)))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    (path / "config.json").write_text('{"model_type": "bert"}')
    return paths


@pytest.mark.parametrize("kind", [*KINDS, "bert-lines"])
def test_tokenizers_equal_auto_tokenizers(checkpoints: Mapping[str, Path], kind: str) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(checkpoints[kind]))
    tokenizer = Tokenizer.load(checkpoints[kind])
    for text, pair in [*((text, None) for text in ODD), *zip(ODD, reversed(ODD), strict=True)]:
        for special in (True, False):
            expected = reference(text, pair, add_special_tokens=special, return_offsets_mapping=True)
            ids, types, _, spans, words = tokenizer.encode_texts(text, pair, add_special_tokens=special)
            assert ids == expected["input_ids"], (text, pair)
            assert types == expected.get("token_type_ids", [0] * len(ids))
            assert spans == expected["offset_mapping"]
            assert words == expected.word_ids()
        decoded = reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(ids) == decoded
    assert tokenizer.vocab_size == len(reference)
    assert tokenizer.special_ids == {*reference.all_special_ids}
    assert tokenizer.special_tokens["mask_token"] == reference.mask_token


def test_tokenizers_are_loaded_without_torch_or_transformers(checkpoints: Mapping[str, Path]) -> None:
    code = (
        "import sys, pathlib; from djl_python.text.tokens.tokenizer import Tokenizer; "
        "[Tokenizer.load(pathlib.Path(p)).encode('hello') for p in sys.argv[1:]]; "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, checkpoints.values())], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("kind", "name"), [("roberta", "XLMRobertaTokenizer"), ("xlm-roberta", "RobertaTokenizer")])
def test_a_vocabulary_of_another_kind_is_refused(
    checkpoints: Mapping[str, Path], tmp_path: Path, kind: str, name: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((checkpoints[kind] / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    with pytest.raises(ModelLoadError, match="it does not fit the tokenizer's class"):
        Tokenizer.load(tmp_path)
