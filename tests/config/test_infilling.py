"""The tokens of a checkpoint for what is between two texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from djl_python.config.infilling import infill_tokens

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")


@pytest.mark.parametrize("tokens", [QWEN, DEEPSEEK])
def test_added_tokens_of_either_file_count(tmp_path: Path, tokens: tuple[str, str, str]) -> None:
    assert infill_tokens(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    added = [{"id": number, "content": token, "special": True} for number, token in enumerate(("<s>", *tokens))]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": {}}))
    assert infill_tokens(tmp_path) == tokens
    (tmp_path / "tokenizer.json").unlink()
    by_id = {str(token["id"]): {"content": token["content"]} for token in added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": by_id}))
    assert infill_tokens(tmp_path) == tokens


def test_two_of_three_tokens_are_none(tmp_path: Path) -> None:
    added = [{"content": token} for token in QWEN[:2]]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert infill_tokens(tmp_path) is None


def test_broken_files_are_left_to_those_who_need_them(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": 3}')
    assert infill_tokens(tmp_path) is None
