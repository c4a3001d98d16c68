"""The languages that a request translates between are tokens of its prompt and of its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.core.errors import ParameterError
from djl_python.core.types import DecoderTokens, GenerateRequest, SamplingParams, Translation
from djl_python.handlers.languages import Languages
from djl_python.text.tokens.tokenizer import Tokenizer
from tests.translators import VOCABULARY, write_tokenizer

EN, FR, DE, START = (VOCABULARY[token] for token in ("en_XX", "fr_XX", "__de__", "</s>"))


def request(**translation: str | int) -> GenerateRequest:
    given = Translation(**translation) if translation else None  # type: ignore[arg-type]
    return GenerateRequest(prompt="the cat", sampling=SamplingParams(max_new_tokens=5), translation=given)


def tokenizer_of(path: Path, single: str = "en_XX $A </s>") -> Tokenizer:
    write_tokenizer(path, single)
    return Tokenizer.load(path)


@pytest.mark.parametrize(("single", "place"), [("en_XX $A </s>", 0), ("$A </s> en_XX", -1)])
def test_a_prompts_language_is_written_where_the_tokenizer_writes_its_own(
    tmp_path: Path, single: str, place: int
) -> None:
    tokenizer = tokenizer_of(tmp_path, single)
    languages = Languages(tokenizer, DecoderTokens((START, EN), 1))
    ids = tokenizer.encode("the cat")
    assert ids[place] == EN
    assert languages.written(ids, request()) == ids
    for name, token in (("fr_XX", FR), ("de", DE)):
        written = languages.written(ids, request(src_lang=name))
        assert written[place] == token
        written[place] = EN
        assert written == ids


@pytest.mark.parametrize("model", [DecoderTokens((START, EN), 1), DecoderTokens((START,))])
def test_an_answers_language_is_the_decoders_first_token(tmp_path: Path, model: DecoderTokens) -> None:
    languages = Languages(tokenizer_of(tmp_path), model)
    assert languages.parted([8, 9], request()) == ([8, 9], list(model.start_ids), model)
    for said in ({"tgt_lang": "fr_XX"}, {"forced_bos_token_id": FR}, {"tgt_lang": "fr_XX", "forced_bos_token_id": FR}):
        assert languages.parted([8, 9], request(**said)) == ([8, 9], [START, FR], DecoderTokens((START, FR), 1))


def test_a_name_of_no_language_of_the_model_is_refused(tmp_path: Path) -> None:
    languages = Languages(tokenizer_of(tmp_path), DecoderTokens((START,)))
    expected = "expected one of the model's languages: en_XX, fr_XX, __de__, got 'cat'"
    with pytest.raises(ParameterError, match=f"tgt_lang: {expected}"):
        languages.parted([8], request(tgt_lang="cat"))
    with pytest.raises(ParameterError, match=f"src_lang: {expected}"):
        languages.written([EN, 8], request(src_lang="cat"))
    with pytest.raises(ParameterError, match="src_lang: this tokenizer writes no language"):
        languages.written([8, 9], request(src_lang="fr_XX"))
    with pytest.raises(ParameterError, match=f"forced_bos_token_id: expected {FR}, which is tgt_lang's, got {EN}"):
        languages.parted([8], request(tgt_lang="fr_XX", forced_bos_token_id=EN))


def test_languages_have_no_effect_on_a_decoder_alone(tmp_path: Path) -> None:
    tokenizer, asked = tokenizer_of(tmp_path), request(src_lang="en_XX", tgt_lang="fr_XX")
    taken = Languages(tokenizer, None).taken(asked)
    assert (taken.ignored, taken.translation) == (("src_lang", "tgt_lang"), None)
    with pytest.raises(ParameterError, match="src_lang: the model does not translate"):
        Languages(tokenizer, None, refuses_unknown=True).taken(asked)
