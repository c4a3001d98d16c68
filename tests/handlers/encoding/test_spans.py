"""Answers that stand in a context, also in a long one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from djl_python.core import budgets
from djl_python.core.errors import ParameterError, PayloadError, TextLengthError
from djl_python.core.text_tasks import ExtractRequest, TextInput
from djl_python.handlers.encoding import spans
from djl_python.pipelines.question_answering import QuestionAnswering
from tests.encoders import SPECIAL, WORDS, write_encoder
from tests.handlers.encoding.harness import ServedEncoder
from tests.handlers.encoding.test_embeddings import ids_of

QUESTION = "who sat"


def ask(context: str, **settings: Any) -> ExtractRequest:
    return ExtractRequest(text=TextInput(text=QUESTION, pair=context, field="inputs"), **settings)


@torch.inference_mode()
def best(model: Any, context: str, longest: int) -> tuple[float, str, float]:
    """(score, answer, score of none) by trying every span."""
    words, first = context.split(), ids_of(QUESTION)
    ids = first + ids_of(context)[1:]
    types = [0] * len(first) + [1] * (len(ids) - len(first))
    output = model(torch.tensor([ids]), token_type_ids=torch.tensor([types]))
    places = [0, *range(len(first), len(first) + len(words))]
    starts, ends = (logits[0, places].softmax(-1).numpy() for logits in (output.start_logits, output.end_logits))
    spans = [
        (float(starts[one + 1] * ends[other + 1]), " ".join(words[one : other + 1]))
        for one in range(len(words))
        for other in range(one, min(len(words), one + longest))
    ]
    return (*max(spans), float(starts[0] * ends[0]))


async def test_the_best_span_of_a_context(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, auto_class="AutoModelForQuestionAnswering")
    served = await ServedEncoder(tmp_path).load()
    assert served.handler.task == "question-answering"
    context = "the cat sat on a mat and saw two birds"
    for longest in (1, 3, 15):
        score, answer, none = best(model, context, longest)
        (reply,) = await served.ask(ask(context, max_answer_tokens=longest, top=3, may_have_none=True))
        with_text = [span for span in reply["spans"] if span["text"]]
        assert with_text[0]["text"] == answer == context[with_text[0]["start"] : with_text[0]["end"]]
        assert with_text[0]["score"] == pytest.approx(score, abs=1e-6)
        scores = [span["score"] for span in reply["spans"]]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True)
        if nothing := [span["score"] for span in reply["spans"] if not span["text"]]:
            assert nothing == pytest.approx([none], abs=1e-6)


def write_letters(path: Path) -> None:
    """A tokenizer as BERT's, whose tokens are letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    for file in path.glob("tokenizer*.json"):
        file.unlink()
    (path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')


async def test_an_answer_is_of_whole_words_unless_the_request_says_otherwise(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, auto_class="AutoModelForQuestionAnswering")
    write_letters(tmp_path)
    served = await ServedEncoder(tmp_path).load()
    context = "the cat sat, on a mat"
    answers = await served.ask(
        *(ask(context, max_answer_tokens=1, align_to_words=aligned) for aligned in (True, False))
    )
    whole, letters = (one["spans"][0] for one in answers)
    assert letters["end"] - letters["start"] == 1 and letters["score"] == whole["score"]
    word = next(one for one in re.finditer(r"\w+|,", context) if one.start() <= letters["start"] < one.end())
    assert (whole["start"], whole["end"], whole["text"]) == (word.start(), word.end(), word[0])
    assert word.end() - word.start() > 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    service = QuestionAnswering(model, tokenizer)
    asked = {"question": QUESTION, "context": context}
    for span, aligned in ((whole, True), (letters, False)):
        (answer,) = service(asked, max_answer_len=1, align_to_words=aligned)
        assert (answer["answer"], answer["start"], answer["end"]) == (span["text"], span["start"], span["end"])
        assert answer["score"] == pytest.approx(span["score"], rel=1e-5)


def test_scores_of_the_pipeline_count_the_first_token_as_an_answer(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, auto_class="AutoModelForQuestionAnswering")
    service = QuestionAnswering(model, transformers.AutoTokenizer.from_pretrained(tmp_path))
    context = "the cat sat on a mat and saw two birds"
    score, answer, none = best(model, context, 15)
    asked = {"question": QUESTION, "context": context}
    (reply,) = service(asked)
    assert (reply["answer"], reply["score"]) == (answer, pytest.approx(score, rel=1e-4))
    (every,) = service(asked, top_k=200, handle_impossible_answer=True)
    assert [span["score"] for span in every if not span["answer"]] == [pytest.approx(none, rel=1e-4)]
    assert len(every) == 56  # as many spans of ten words as there are, and none


async def test_a_long_context_is_read_in_pieces_that_overlap(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, auto_class="AutoModelForQuestionAnswering")
    served = await ServedEncoder(tmp_path).load(max_input_tokens=15)  # 10 of them for the context
    words = ("the cat sat on a mat and saw two birds who where is it " * 3).split()
    (reply,) = await served.ask(ask(" ".join(words), stride=4, top=1))
    pieces = [words[first : first + 10] for first in range(0, len(words) - 4, 6)]
    assert [len(one.ids) for one in served.engine.requests[0]] == [len(piece) + 5 for piece in pieces]
    score, answer, _ = max(best(model, " ".join(piece), 15) for piece in pieces)
    assert reply["spans"][0]["score"] == pytest.approx(score, abs=1e-6)
    assert reply["spans"][0]["text"] == answer
    assert np.isclose(reply["tokens"], sum(len(piece) + 5 for piece in pieces))


async def test_the_best_spans_of_all_pieces_are_chosen_together(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, auto_class="AutoModelForQuestionAnswering")
    served = await ServedEncoder(tmp_path).load(max_input_tokens=15)
    words = ("the cat sat on a mat and saw two birds who where is it " * 3).split()
    pieces = [" ".join(words[first : first + 10]) for first in range(0, len(words) - 5, 5)]
    expected = sorted((best(model, piece, 15)[0] for piece in pieces), reverse=True)[0]
    several, every = await served.ask(ask(" ".join(words), top=9), ask(" ".join(words), top=1024))
    scores = [[span["score"] for span in one["spans"]] for one in (several, every)]
    assert scores[0] == sorted(scores[0], reverse=True) == scores[1][:9]
    assert scores[0][0] == pytest.approx(expected, abs=1e-6)
    assert len(scores[1]) == sum(n * (n + 1) // 2 for n in (len(piece.split()) for piece in pieces))


async def test_a_context_of_too_many_pieces_is_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long question leaves little room in each piece, and is in all of them."""
    write_encoder(tmp_path, auto_class="AutoModelForQuestionAnswering")
    served = await ServedEncoder(tmp_path).load(max_input_tokens=15)
    monkeypatch.setattr(budgets, "PIECES", budgets.PIECES._replace(most=4))
    context = " ".join(WORDS[:10])
    (result,) = await served.ask(ask(" ".join([context] * 2)))  # 10 of the context in a piece, 5 of them anew
    assert result["tokens"] == 3 * 15
    with pytest.raises(ParameterError, match="inputs: the context: expected at most 4 pieces, got at least 5"):
        await served.ask(ask(" ".join([context] * 3)))
    question = TextInput(text=" ".join(["who"] * 10), pair=context, field="inputs")  # 2 of the context in a piece
    with pytest.raises(ParameterError, match="inputs: the context: expected at most 4 pieces, got at least 9"):
        await served.ask(ExtractRequest(text=question))
    tokenized: list[str] = []
    monkeypatch.setattr(spans, "sequence_of", lambda tokenizer, text, pair: tokenized.append(pair))
    with pytest.raises(ParameterError, match="expected at most 4 pieces, got at least 5"):
        await served.ask(ask(context * 5000))
    assert not tokenized


async def test_pieces_of_all_contexts_count_as_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_encoder(tmp_path, auto_class="AutoModelForQuestionAnswering")
    served = await ServedEncoder(tmp_path).load(max_input_tokens=15)
    monkeypatch.setattr(budgets, "TEXTS", budgets.TEXTS._replace(most=6))
    context = " ".join(WORDS[:10] * 2)
    assert len(await served.ask(ask(context), ask(context))) == 2
    with pytest.raises(PayloadError, match="expected at most 6 texts, got 7: each piece of a context is one"):
        await served.ask(ask(context), ask(context), ask("the cat"))


async def test_a_context_too_long_or_a_missing_question_is_refused(tmp_path: Path) -> None:
    write_encoder(tmp_path, auto_class="AutoModelForQuestionAnswering")
    served = await ServedEncoder(tmp_path).load(max_input_tokens=5)
    with pytest.raises(TextLengthError, match="inputs: 5 tokens, expected at most 4"):
        await served.ask(ask("the cat"))
    with pytest.raises(ParameterError, match="expected a question and a context"):
        await served.ask(ask(""))
