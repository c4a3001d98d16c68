"""Ids and texts equal AutoTokenizer's, without transformers or torch in the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from djl_python.core.errors import ModelLoadError
from djl_python.text.tokens import pipelines
from djl_python.text.tokens import tokenizer as tokenizer_module
from djl_python.text.tokens.tokenizer import Tokenizer
from tests.checkpoints import RELEASE, since
from tests.text.conftest import TEXTS


@pytest.fixture(scope="module")
def auto_tokenizer() -> Any:
    from transformers import AutoTokenizer  # takes seconds

    return AutoTokenizer


#: Since when transformers makes the same tokenizer of these as the newest does, whose classes `pipelines` follows.
SAME_SINCE = {"gpt-neox": "5.16", "llama3-misnamed": "5.22"}


def test_ids_equal_auto_tokenizers(
    kind: str, tokenizer: Tokenizer, checkpoints: dict[str, Path], auto_tokenizer: Any
) -> None:
    if Version(SAME_SINCE.get(kind, "0")) > RELEASE:
        pytest.skip(f"before {SAME_SINCE[kind]}, transformers made another tokenizer of it")
    reference = auto_tokenizer.from_pretrained(str(checkpoints[kind]))
    for text in TEXTS:
        for special in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=special)
            assert ids == reference.encode(text, add_special_tokens=special), text
            for skip in (True, False):
                expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
    assert tokenizer.vocab_size == len(reference)
    assert tokenizer.eos_ids >= {reference.eos_token_id}
    assert tokenizer.special_tokens["eos_token"] == reference.eos_token
    for token_id in range(0, tokenizer.vocab_size, 7):
        assert tokenizer.id_to_token(token_id) == reference.convert_ids_to_tokens(token_id)
    assert tokenizer.id_to_token(tokenizer.vocab_size + 5) is None


@since("5.23")
def test_class_tables_are_those_of_transformers() -> None:
    from transformers.models.auto import tokenization_auto as auto

    for model_type, name in pipelines.REGISTERED.items():
        assert auto.TOKENIZER_MAPPING_NAMES[model_type] == name, model_type
    assert set(pipelines.OVERRIDES) <= auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS


def test_loads_without_torch_or_transformers(checkpoints: dict[str, Path]) -> None:
    code = (
        "import sys, pathlib; from djl_python.text.tokens.tokenizer import Tokenizer; "
        "[Tokenizer.load(pathlib.Path(p)).encode('hello') for p in sys.argv[1:]]; "
        "print([m for m in ('torch', 'transformers', 'tornado') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, checkpoints.values())], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_eos_ids_come_from_generation_config_first(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    for file in checkpoints["llama3"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert Tokenizer.load(tmp_path).eos_ids == {0, 1}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 1}')
    assert Tokenizer.load(tmp_path).eos_ids == {1}


def test_special_tokens_map_counts_without_added_tokens_decoder(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((checkpoints["byte-level"] / "tokenizer.json").read_bytes())
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|end|>", "lstrip": false}}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.special_tokens == {"eos_token": "<|end|>"}
    assert tokenizer.eos_ids == {tokenizer.token_to_id("<|end|>")}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "there is no tokenizer"),
        # transformers makes tokenizers without a vocabulary for these.
        ({"config.json": '{"model_type": "qwen2"}'}, "there is no tokenizer"),
        ({"config.json": '{"model_type": "llama"}'}, "there is no tokenizer"),
        ({"config.json": '{"model_type": "gemma2"}'}, "there is no tokenizer"),
        ({"tokenizer.json": "{"}, "tokenizer.json: "),
        ({"tokenizer.json": "{}"}, "tokenizer.json: Object missing required field `model`"),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "[1"}, "tokenizer_config.json is not valid JSON"),
        ({"config.json": "[]"}, "config.json: expected a JSON object"),
        ({"generation_config.json": "{"}, "generation_config.json is not valid JSON"),
        (
            {"generation_config.json": '{"eos_token_id": ["</s>"]}'},
            "generation_config.json: eos_token_id: Expected `int`",
        ),
        ({"chat_template.json": '{"chat_template": 5}'}, "chat_template.json: chat_template: Expected `"),
        (
            {"tokenizer_config.json": '{"chat_template": [{"template": "a"}]}'},
            "tokenizer_config.json: chat_template: Object missing required field `name`",
        ),
        ({"chat_template.jinja": "\udcff"}, "chat_template.jinja: 'utf-8' codec can't decode byte 0xff"),
        ({"tokenizer.json": '{"model": {"type": "BPE"}}'}, "tokenizer.json: Cannot instantiate Tokenizer"),
    ],
)
def test_a_broken_file_is_explained(files: dict[str, str], expected: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(ModelLoadError, match="^" + str(tmp_path)) as caught:
        Tokenizer.load(tmp_path)
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("unigram", {"tokenizer_class": "LlamaTokenizer"}, "tokenizer.json: it does not fit the tokenizer's class"),
        ("unigram", {"tokenizer_class": "LlamaTokenizer"}, "Unigram' object has no attribute 'fuse_unk'"),
        ("byte-level", {"tokenizer_class": 5}, "the tokenizer's class (tokenizer_config.json, config.json): Attribute"),
        ("byte-level", {"added_tokens_decoder": {"x": {"content": "a"}}}, "tokens of tokenizer_config.json"),
        ("byte-level", {"added_tokens_decoder": {"7": "a"}}, "tokens of tokenizer_config.json"),
        ("byte-level", {"additional_special_tokens": [{}]}, "(and special_tokens_map.json): KeyError: 'content'"),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    checkpoints: dict[str, Path], kind: str, config: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((checkpoints[kind] / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="^" + str(tmp_path)) as caught:
        Tokenizer.load(tmp_path)
    assert expected in caught.value.message


def test_a_class_that_is_not_reimplemented_goes_through_transformers(
    checkpoints: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, auto_tokenizer: Any
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((checkpoints["unigram"] / "tokenizer.json").read_bytes())
    config = {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "extra_ids": 3}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with caplog.at_level("INFO"):
        tokenizer = Tokenizer.load(tmp_path)
    assert "loaded by transformers" in caplog.text
    reference = auto_tokenizer.from_pretrained(str(tmp_path))
    for text in TEXTS:
        assert tokenizer.encode(text) == reference.encode(text)


def test_a_tokenizer_written_in_python_is_used_through_transformers(tmp_path: Path, auto_tokenizer: Any) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "byt5"}')
    (tmp_path / "added_tokens.json").write_text("{}")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.token_bytes is None
    assert tokenizer.decode(tokenizer.encode("Grüße 👍")) == "Grüße 👍"
    assert tokenizer.token_to_id("</s>") in tokenizer.special_ids


def test_chat_templates_are_found_by_name(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((checkpoints["byte-level"] / "tokenizer.json").read_bytes())
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "one"}')
    assert Tokenizer.load(tmp_path).chat_templates == {"default": "one"}
    config.write_text(
        '{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}'
    )
    assert Tokenizer.load(tmp_path).chat_templates == {"default": "a", "tool_use": "b"}
    (tmp_path / "chat_template.json").write_text('{"chat_template": "from a processor"}')
    assert Tokenizer.load(tmp_path).chat_templates == {"default": "from a processor"}
    (tmp_path / "chat_template.jinja").write_text("from a file")
    assert Tokenizer.load(tmp_path).chat_templates == {"default": "from a file"}


def test_bad_words_have_ids_for_every_position(kind: str, tokenizer: Tokenizer) -> None:
    if kind == "word-piece":
        pytest.skip("knows no spaces")
    banned = tokenizer.bad_words(["world", ""])
    assert all(banned)  # none of no tokens: it would be everywhere
    for text in ("world", "hello world", "a\nworld"):
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        assert any(ids[-len(sequence) :] == sequence for sequence in banned), text


def test_a_name_keeps_its_space(loaded: dict[str, Tokenizer]) -> None:
    for kind in ("byte-level", "llama2", "unigram"):
        tokenizer = loaded[kind]
        ids = tokenizer.encode("hello world", add_special_tokens=False)
        assert "".join(tokenizer.name_of(token_id)[0] for token_id in ids).strip() == "hello world"
    end = loaded["word-piece"].token_to_id("[SEP]")
    assert end is not None and loaded["word-piece"].name_of(end) == ("[SEP]", None)


def test_bytes_that_are_no_whole_characters_have_names(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte-level"]
    names = [tokenizer.name_of(token_id) for token_id in tokenizer.encode("👍", add_special_tokens=False)]
    assert len(names) > 1
    assert {name for name, _ in names} == {"\ufffd"}
    assert b"".join(part or b"?" for _, part in names).decode() == "👍"


# ------------------------------------------------------------------------------------------------ spans


def test_spans_are_the_characters_of_the_text(kind: str, tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        spans = tokenizer.spans(text)
        assert [token_id for token_id, _, _ in spans] == tokenizer.encode(text)
        covered = set()
        for _, start, stop in spans:
            assert 0 <= start <= stop <= len(text)
            covered |= set(range(start, stop))
        if kind != "word-piece":  # which drops what it does not know
            assert {i for i in range(len(text)) if not text[i].isspace()} <= covered


def test_parts_of_a_character_cover_all_of_it(loaded: dict[str, Tokenizer]) -> None:
    for kind in ("byte-level", "llama3", "gemma"):
        spans = loaded[kind].spans("a👍b", add_special_tokens=False)
        assert spans[0][1:] == (0, 1) and spans[-1][1:] == (2, 3)
        assert {span[1:] for span in spans[1:-1]} == {(1, 2)}


def test_added_tokens_cover_nothing(loaded: dict[str, Tokenizer]) -> None:
    begin, *_ = loaded["llama3"].spans("hello")
    assert begin[1:] == (0, 0)


def test_a_slow_tokenizer_has_spans_too(loaded: dict[str, Tokenizer]) -> None:
    class Slow:
        """What a tokenizer in Python offers, over a fast one."""

        all_special_ids: tuple[int, ...] = ()
        inner = loaded["byte-level"]

        def __len__(self) -> int:
            return self.inner.vocab_size

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return self.inner.encode(text, add_special_tokens)

        def decode(self, ids: list[int], **options: bool) -> str:
            return self.inner.decode(ids, skip_special_tokens=options["skip_special_tokens"])

    text = "Hello  wörld 👍🏽 end"
    spans = tokenizer_module.SlowBackend(Slow()).spans(text, True)
    assert [token_id for token_id, _, _ in spans] == loaded["byte-level"].encode(text)
    expected = loaded["byte-level"].spans(text)
    words = [(start, stop) for _, start, stop in spans if text[start:stop].strip()]
    assert words == [
        (start + len(text[start:stop]) - len(text[start:stop].lstrip()), stop)
        for _, start, stop in expected
        if text[start:stop].strip()
    ]


def test_special_tokens_can_be_shown(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["llama3"]
    shown = tokenizer.showing(["<|end|>", "not a token"])
    assert tokenizer.special_ids - shown.special_ids == {tokenizer.token_to_id("<|end|>")}
    assert tokenizer.token_to_id("<tool>") not in tokenizer.special_ids
    assert shown.encode("a<|end|>") == tokenizer.encode("a<|end|>")
