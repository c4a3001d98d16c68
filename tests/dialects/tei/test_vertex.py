"""Vertex AI's form: instances, each a body of another path, and the prediction for each."""

from __future__ import annotations

from typing import Any

import pytest

from djl_python.core import budgets
from tests.dialects.exchange import inputs, model
from tests.dialects.tei.test_dialect import CLASSIFIER, EMBEDDER, RANKER, TEI, ask, refusal

RANKED = {"query": "a b", "texts": ["c", "a"]}


@pytest.mark.parametrize(
    ("task", "operation", "bodies"),
    [
        (EMBEDDER, "embed", [{"inputs": "a"}, {"inputs": ["a b", "c"], "dimensions": 2}]),
        (CLASSIFIER, "predict", [{"inputs": "a"}, {"inputs": [["a"], ["b", "c"]], "raw_scores": True}]),
        (RANKER, "rerank", [RANKED, {**RANKED, "return_text": True}]),
    ],
)
def test_predictions_are_the_answers_of_other_paths(task: str, operation: str, bodies: list[Any]) -> None:
    expected = [ask(task, operation, body) for body in bodies]
    assert ask(task, "vertex", {"instances": bodies}) == {"predictions": expected}


def test_an_embedder_ranks_where_an_instance_has_a_query() -> None:
    answer = ask(EMBEDDER, "vertex", {"instances": [{"inputs": "a"}, RANKED]})
    assert answer == {"predictions": [ask(EMBEDDER, "embed", {"inputs": "a"}), ask(EMBEDDER, "rerank", RANKED)]}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 422, "instances"),
        ({"instances": []}, 422, "instances"),
        ({"instances": ["a"]}, 422, "instances[0]"),
        ({"instances": [{"inputs": "a"}, {"inputs": 5}]}, 422, "instances[1].inputs"),
        ({"instances": [{"inputs": "a"}, {"inputs": ["a", "word " * 20]}]}, 413, "tokens"),
    ],
)
def test_errors_name_the_instance(body: Any, status: int, said: str) -> None:
    answer, error = refusal(EMBEDDER, "vertex", body)
    assert answer == status and said in error["error"], error
    assert error["error_type"] == "Validation"


def test_a_long_text_is_named_with_its_instance() -> None:
    parsed = TEI.parse_task(EMBEDDER, inputs("vertex", {"instances": [{"inputs": ["a", "b"]}]}), model())
    assert [request.text.field for request in parsed.requests] == ["instances[0].inputs[0]", "instances[0].inputs[1]"]


def test_instances_share_the_limit_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a"] * (budgets.TEXTS.most // 2 + 1)
    status, error = refusal(EMBEDDER, "vertex", {"instances": [{"inputs": texts}] * 2})
    assert (status, error["error"]) == (
        413,
        f"batch size {2 * len(texts)} > maximum allowed batch size {budgets.TEXTS.most}",
    )


def test_names_without_effect_are_told_once() -> None:
    body = {"instances": [{"inputs": "a", "colour": "red"}, {"inputs": "b", "colour": "blue"}]}
    parsed = TEI.parse_task(EMBEDDER, inputs("vertex", body), model())
    assert parsed.formatter.headers["x-ignored-parameters"] == "colour"
