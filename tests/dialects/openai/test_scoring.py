"""/score and /rerank: request -> required answer, as vLLM's, Cohere's and Jina's references say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from djl_python.core.errors import PayloadError, ServingError
from djl_python.dialects.openai.dialect import OpenAIDialect
from tests.dialects.exchange import inputs, model, task_answer
from tests.text_tasks import LIMIT

OPENAI = OpenAIDialect()
QUERY = "a b"
DOCUMENTS = ["x y", "b a c", "a x"]


def ask(operation: str, body: Any, task: str = "text-ranking") -> dict[str, Any]:
    answer: dict[str, Any] = task_answer(OPENAI, task, operation, body)
    return answer


@pytest.mark.parametrize("task", ["text-ranking", "feature-extraction", "sentence-similarity"])
@pytest.mark.parametrize("operation", ["rerank", "rerank_v1"])
def test_documents_are_ranked(task: str, operation: str) -> None:
    ranking = ask(operation, {"query": QUERY, "documents": DOCUMENTS, "model": "any"}, task)
    assert re.fullmatch(r"rerank-[0-9a-f]{32}", ranking.pop("id"))
    assert ranking == {
        "model": "served",
        "usage": {"prompt_tokens": 19, "total_tokens": 19},
        "results": [
            {"index": 1, "document": {"text": "b a c"}, "relevance_score": 1.0},
            {"index": 2, "document": {"text": "a x"}, "relevance_score": 0.5},
            {"index": 0, "document": {"text": "x y"}, "relevance_score": 0.0},
        ],
    }


def test_the_best_documents_alone() -> None:
    ranking = ask("rerank", {"query": QUERY, "documents": DOCUMENTS, "top_n": 1, "return_documents": False})
    assert ranking["results"] == [{"index": 1, "relevance_score": 1.0}]
    assert len(ask("rerank", {"query": QUERY, "documents": DOCUMENTS, "top_n": 0})["results"]) == 3


def test_documents_as_objects() -> None:
    ranking = ask("rerank", {"query": QUERY, "documents": [{"text": "b", "title": "B"}]})
    assert ranking["results"] == [{"index": 0, "document": {"text": "b"}, "relevance_score": 0.5}]


def test_coheres_second_version_has_no_documents_and_cuts_long_ones() -> None:
    body = {"query": QUERY, "documents": ["word " * LIMIT]}
    ranking = ask("rerank_v2", body)
    assert ranking["results"] == [{"index": 0, "relevance_score": 0.0}]
    assert ranking["usage"]["total_tokens"] == LIMIT
    with pytest.raises(ServingError, match=r"documents\[0\]: 20 tokens"):
        ask("rerank_v1", body)
    assert ask("rerank_v1", body | {"truncate_prompt_tokens": 8})["usage"]["total_tokens"] == 8


def test_logits() -> None:
    ranking = ask("rerank", {"query": QUERY, "documents": ["a"], "use_activation": False})
    assert ranking["results"][0]["relevance_score"] == 5.0


@pytest.mark.parametrize(
    ("first", "second", "scores"),
    [
        ("a b", "a", [0.5]),
        ("a b", ["a", "b a"], [0.5, 1.0]),
        (["a b"], ["a", "b a"], [0.5, 1.0]),
        (["a b", "c"], ["a", "d"], [0.5, 0.0]),
    ],
)
def test_pairs_are_scored(first: Any, second: Any, scores: list[float]) -> None:
    scored = ask("score", {"text_1": first, "text_2": second})
    assert re.fullmatch(r"score-[0-9a-f]{32}", scored["id"])
    assert isinstance(scored["created"], int)
    assert (scored["object"], scored["model"]) == ("list", "served")
    assert scored["data"] == [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("operation", "body", "field"),
    [
        ("score", {"text_1": "a"}, "text_2"),
        ("score", {"text_1": ["a", "b"], "text_2": "c"}, "text_2"),
        ("score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_2"),
        ("score", {"text_1": "a", "text_2": ["c", ""]}, "text_2[1]"),
        ("rerank", {"query": "a"}, "documents"),
        ("rerank", {"query": "", "documents": ["b"]}, "query"),
        ("rerank", {"query": "a", "documents": []}, "documents"),
        ("rerank", {"query": "a", "documents": ["b", {}]}, "documents[1].text"),
        ("rerank", {"query": "a", "documents": ["b", 5]}, "documents[1]"),
        ("rerank", {"query": "a", "documents": ["b"] * 2049}, "documents"),
    ],
)
def test_refusals_name_the_field(operation: str, body: Any, field: str) -> None:
    with pytest.raises(PayloadError) as raised:
        ask(operation, body)
    assert raised.value.field == field
    assert raised.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("body", "answering"),
    [
        (b'{"query": "a", "texts": ["b"]}', "tei"),
        (b'{"query": "a", "documents": ["b"]}', "openai"),
        (b'{"query": "the \\"texts\\"", "documents": ["b"]}', "openai"),
        (b'{"query": "a", "documents": [{"text": "b", "texts": "c"}]}', "openai"),
        (b'{"query": "\\"documents\\"", "texts": ["b"]}', "tei"),
        (b'{"query": "documents", "texts": ["b"]}', "tei"),
        (b'{"query": "a", "texts": ["b"], "documents": null}', "tei"),
        (b'{"query": "a", "texts": null, "documents": ["b"]}', "openai"),
        (b"{", "openai"),
        (b'{"texts": "documents" "documents"', "openai"),
    ],
)
def test_the_body_says_whose_rerank_it_is(body: bytes, answering: str) -> None:
    assert OPENAI.answering_dialect("rerank", model(), "text-ranking", body) == answering
    assert OPENAI.answering_dialect("rerank_v1", model(), "text-ranking", body) == "openai"


def test_parameters_without_effect_are_reported_as_ignored() -> None:
    body = {"query": "a", "documents": ["b"], "max_chunks_per_doc": 5}
    parsed = OPENAI.parse_task("text-ranking", inputs("rerank", body), model())
    assert parsed.formatter.headers["x-ignored-parameters"] == "max_chunks_per_doc"
