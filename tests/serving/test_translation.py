"""Translations between languages that a request names, from a real server, beside transformers' own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer

from djl_python.testing import RunningServer, running_server
from tests.encoder_decoders import reference_of
from tests.translators import VOCABULARY, build_translator

TEXT = "the cat saw two birds"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_translator(tmp_path_factory.mktemp("models") / "translator")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[RunningServer]:
    with running_server("-m", f"translator={path}", start_timeout_s=240) as running:
        yield running


def post(server: RunningServer, parameters: dict[str, Any]) -> httpx.Response:
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 8, **parameters}}
    return httpx.post(f"{server.url}/invocations", json=body, timeout=120)


def test_translations_are_those_of_transformers(server: RunningServer, path: Path) -> None:
    model, tokenizer = reference_of(path), AutoTokenizer.from_pretrained(path)
    translations = set()
    for source, target in (("en_XX", "en_XX"), ("en_XX", "fr_XX"), ("fr_XX", "en_XX"), ("de", "fr_XX")):
        ids = tokenizer(TEXT, return_tensors="pt").input_ids
        ids[0, 0] = VOCABULARY.get(source, VOCABULARY["__de__"])
        with torch.inference_mode():
            made = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=9, num_beams=1, do_sample=False,
                forced_bos_token_id=VOCABULARY[target],
            )  # fmt: skip
        expected = tokenizer.decode(made[0], skip_special_tokens=True)
        answer = post(server, {"src_lang": source, "tgt_lang": target})
        assert answer.status_code == 200, (answer.text, server.output())
        assert answer.json()["generated_text"] == expected
        translations.add(expected)
    assert len(translations) > 1


def test_a_language_that_the_model_lacks_is_refused_with_those_it_has(server: RunningServer) -> None:
    answer = post(server, {"tgt_lang": "xx"})
    assert answer.status_code == 424
    assert "tgt_lang: expected one of the model's languages: en_XX, fr_XX, __de__, got 'xx'" in answer.text
    answer = post(server, {"forced_bos_token_id": len(VOCABULARY)})
    assert answer.status_code == 424 and "forced_bos_token_id" in answer.text
