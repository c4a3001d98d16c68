"""Text Embeddings Inference's API: request -> required answer, as its OpenAPI document and its router say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from djl_python import __version__
from djl_python.core import budgets, errors
from djl_python.core.errors import PayloadError, ServingError
from djl_python.dialects.tei.dialect import TeiDialect
from djl_python.dialects.tgi.dialect import TgiDialect
from tests.dialects.exchange import inputs, model, task_answer
from tests.text_tasks import DIMENSIONS, LIMIT, View, result

TEI = TeiDialect()
EMBEDDER, RANKER, CLASSIFIER = "feature-extraction", "text-ranking", "text-classification"


def ask(task: str, operation: str, body: Any) -> Any:
    return task_answer(TEI, task, operation, body)


def query(operation: str, body: Any = None, task: str = EMBEDDER) -> Any:
    answer = TEI.query(inputs(operation, body or {}), View(model(), task))
    return json.loads(answer.body)


def refusal(task: str, operation: str, body: Any) -> tuple[int, dict[str, Any]]:
    call = inputs(operation, body)
    with pytest.raises(ServingError) as raised:
        for request in TEI.parse_task(task, call, model()).requests:
            result(request)
    answer = TEI.error(raised.value, model(), operation=operation, inputs=call)
    return answer.status, json.loads(answer.body)


# ------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize(("given", "count"), [("a b", 1), (["a", "b c"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)])
def test_embed_answers_with_a_list_of_vectors(given: Any, count: int) -> None:
    assert [len(one) for one in ask(EMBEDDER, "embed", {"inputs": given})] == [DIMENSIONS] * count


def test_embeds_fields() -> None:
    body = {"inputs": "a", "normalize": False, "dimensions": 2, "prompt_name": "query"}
    (request,) = TEI.parse_task(EMBEDDER, inputs("embed", body), model()).requests
    assert (request.normalize, request.dimensions, request.text.prompt_name) == (False, 2, "query")
    (request,) = TEI.parse_task(EMBEDDER, inputs("embed", {"inputs": "a"}), model()).requests
    assert (request.normalize, request.dimensions, request.text.truncate) == (True, None, "")


@pytest.mark.parametrize(("direction", "side"), [("Left", "left"), ("right", "right"), (None, "right")])
def test_truncation(direction: str | None, side: str) -> None:
    body = {"inputs": "word " * LIMIT, "truncate": True} | ({"truncation_direction": direction} if direction else {})
    (request,) = TEI.parse_task(EMBEDDER, inputs("embed", body), model()).requests
    assert request.text.truncate == side
    assert len(ask(EMBEDDER, "embed", body)) == 1


def test_embed_all_has_a_vector_for_each_token() -> None:
    ((first, *others),) = ask(EMBEDDER, "embed_all", {"inputs": "a b"})
    assert (len(first), len(others)) == (DIMENSIONS, 3)


def test_embed_sparse_has_weights_by_token() -> None:
    assert ask(EMBEDDER, "embed_sparse", {"inputs": "a"}) == [[{"index": 7, "value": 0.5}, {"index": 9, "value": 1.5}]]


@pytest.mark.parametrize("task", [RANKER, EMBEDDER])
def test_rerank(task: str) -> None:
    body = {"query": "a b", "texts": ["x", "b a"]}
    assert ask(task, "rerank", body) == [{"index": 1, "score": 1.0}, {"index": 0, "score": 0.0}]
    assert ask(task, "rerank", body | {"return_text": True, "raw_scores": True}) == [
        {"index": 1, "text": "b a", "score": 10.0},
        {"index": 0, "text": "x", "score": 0.0},
    ]


LABELS = [
    {"score": 0.625, "label": "question"},
    {"score": 0.25, "label": "short"},
    {"score": 0.125, "label": "long"},
]


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("a", LABELS),
        (["a"], LABELS),
        (["a", "b"], LABELS),
        ([["a"]], [LABELS]),
        ([["a"], ["b", "c"]], [LABELS, LABELS]),
    ],
)
def test_predict(given: Any, answer: Any) -> None:
    assert ask(CLASSIFIER, "predict", {"inputs": given}) == answer


def test_predict_reads_a_pair_together() -> None:
    (request,) = TEI.parse_task(
        CLASSIFIER, inputs("predict", {"inputs": ["a", "b"], "raw_scores": True}), model()
    ).requests
    assert (request.text.text, request.text.pair, request.activation.name) == ("a", "b", "NONE")


def test_similarity() -> None:
    body = {"inputs": {"source_sentence": "a b", "sentences": ["b a", "x", "a"]}}
    assert ask(EMBEDDER, "similarity", body) == [1.0, 0.0, 0.5]


def test_tokens() -> None:
    end = {"id": 0, "text": "[END]", "special": True, "start": None, "stop": None}
    word = {"id": 2, "text": "is", "special": False, "start": 5, "stop": 7}
    first, second = query("tokenize", {"inputs": ["a", "What is"]})
    assert (second[0], second[2], second[3]) == (end, word, end)
    assert len(first) == 3
    assert len(query("tokenize", {"inputs": "a", "add_special_tokens": False})[0]) == 1


def test_tokens_of_all_texts_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = len(query("tokenize", {"inputs": "a"})[0])
    monkeypatch.setattr(budgets, "LISTED_TOKENS", budgets.LISTED_TOKENS._replace(most=2 * listed))
    assert len(query("tokenize", {"inputs": ["a", "a"]})) == 2
    with pytest.raises(PayloadError, match=f"expected at most {2 * listed} tokens together"):
        query("tokenize", {"inputs": ["a", "a", "a"]})


def test_decode() -> None:
    assert query("decode", {"ids": [1, 2, 0]}) == ["x xx"]
    assert query("decode", {"ids": [[1], [2, 0]], "skip_special_tokens": False}) == ["x", "xx [END]"]
    with pytest.raises(errors.PayloadError, match="ids: expected token ids, or arrays of them"):
        query("decode", {"ids": [1, [2]]})


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (EMBEDDER, {"embedding": {"pooling": "mean"}}),
        (
            CLASSIFIER,
            {
                "classifier": {
                    "id2label": {"0": "short", "1": "long", "2": "question"},
                    "label2id": {"short": 0, "long": 1, "question": 2},
                }
            },
        ),
        ("fill-mask", {}),
    ],
)
def test_info(task: str, kind: dict[str, Any]) -> None:
    info = query("info", task=task)
    assert info["model_type"] == kind
    assert (
        info
        | {
            "model_id": "canned/model",
            "model_sha": None,
            "model_dtype": "float32",
            "model_pipeline_tag": task,
            "max_input_length": LIMIT,
            "max_batch_tokens": 64 * LIMIT,
            "max_client_batch_size": 2048,
            "version": __version__,
        }
        == info
    )
    assert "reranker" in query("info", task=RANKER)["model_type"]


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("task", "operation", "body", "field"),
    [
        (EMBEDDER, "embed", {}, "inputs"),
        (EMBEDDER, "embed", {"inputs": ""}, "inputs"),
        (EMBEDDER, "embed", {"inputs": [""]}, "inputs[0]"),
        (EMBEDDER, "embed", {"inputs": ["a", 5]}, "inputs[1]"),
        (EMBEDDER, "embed", {"inputs": "a", "normalize": "yes"}, "normalize"),
        (EMBEDDER, "embed", {"inputs": "a", "truncation_direction": "up"}, "truncation_direction"),
        (EMBEDDER, "similarity", {"inputs": {"source_sentence": "a"}}, "inputs.sentences"),
        (RANKER, "rerank", {"query": "a"}, "texts"),
        (CLASSIFIER, "predict", {"inputs": ["a", "b", "c"]}, "inputs"),
        (CLASSIFIER, "predict", {"inputs": [["a"], "b"]}, "inputs[1]"),
        (CLASSIFIER, "predict", {"inputs": [["a", "b", "c"]]}, "inputs[0]"),
    ],
)
def test_a_wrong_field_is_named_in_the_error(task: str, operation: str, body: Any, field: str) -> None:
    status, error = refusal(task, operation, body)
    assert (status, error["error_type"]) == (422, "Validation")
    assert error["error"].startswith(f"Input validation error: {field}: ")


def test_a_text_that_is_too_long() -> None:
    assert refusal(EMBEDDER, "embed", {"inputs": "word " * 20}) == (
        413,
        {
            "error": "Input validation error: `inputs` must have less than 16 tokens. Given: 22",
            "error_type": "Validation",
        },
    )


@pytest.mark.parametrize(
    ("task", "operation", "body"),
    [
        (EMBEDDER, "embed", {"inputs": ["a"] * 2049}),
        (EMBEDDER, "embed", {"inputs": [[1]] * 2049}),
        (RANKER, "rerank", {"query": "a", "texts": ["a"] * 2049}),
    ],
)
def test_too_many_texts(task: str, operation: str, body: Any) -> None:
    assert refusal(task, operation, body) == (
        413,
        {"error": "batch size 2049 > maximum allowed batch size 2048", "error_type": "Validation"},
    )


def test_a_model_of_another_task() -> None:
    status, error = refusal(CLASSIFIER, "embed", {"inputs": "a"})
    assert (status, error["error_type"]) == (424, "Backend")
    assert error["error"] == (
        "model 'served' is for text-classification, and this path is not; ask it at /predict, /vertex, /, /invocations"
    )
    with pytest.raises(errors.TaskError, match="is for text-generation, and this path is not; ask it at /invocations"):
        TEI.parse(inputs("embed", {"inputs": "a"}), model())


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.OverloadedError("full"), 429, "Overloaded"),
        (errors.UnavailableError("loading"), 503, "Unhealthy"),
        (errors.GenerationError("broke"), 424, "Backend"),
        (errors.ModelNotFoundError("none"), 404, "Validation"),
        (errors.PayloadError("no JSON"), 400, "Validation"),
        (errors.ServingError("bug"), 500, "Backend"),
    ],
)
def test_other_errors(error: ServingError, status: int, kind: str) -> None:
    answer = TEI.error(error)
    assert (answer.status, json.loads(answer.body)["error_type"]) == (status, kind)


# ------------------------------------------------------------------------------------------------ shared paths


@pytest.mark.parametrize("operation", ["compat_generate", "tokenize", "info"])
def test_at_tgis_paths_the_models_task_decides(operation: str) -> None:
    tgi = TgiDialect()
    assert tgi.answering_dialect(operation, model(), EMBEDDER, b"") == "tei"
    assert tgi.answering_dialect(operation, model(), "", b"") == "tgi"
    assert tgi.answering_dialect("generate", model(), EMBEDDER, b"") == "tgi"
    assert operation in {route.operation for route in TEI.shared}


def test_at_the_root_the_answer_has_the_hubs_form() -> None:
    assert len(ask(EMBEDDER, "compat_generate", {"inputs": "a"})) == 1
    assert [one["label"] for one in ask(CLASSIFIER, "compat_generate", {"inputs": "a"})[0]] == [
        "question",
        "short",
        "long",
    ]
    body = {"inputs": "a b", "parameters": {"candidate_labels": ["x", "a"]}}
    assert ask("zero-shot-classification", "compat_generate", body) == [
        {"label": "a", "score": 1.0},
        {"label": "x", "score": 0.0},
    ]
    assert ask("token-classification", "compat_generate", {"inputs": "a Bob"})[0]["entity_group"] == "NAME"


def test_an_exceeded_rate_is_answered_with_429_and_its_message() -> None:
    answer = TEI.error(errors.RateLimitError("Rate limit reached: 3 requests a minute", "requests", 20))
    assert (answer.status, answer.headers["retry-after"]) == (429, "20")
    assert json.loads(answer.body) == {"error": "Rate limit reached: 3 requests a minute", "error_type": "Overloaded"}
