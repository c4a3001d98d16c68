"""The bodies of transformers' pipelines at LMI's paths: request -> required answer."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from djl_python.core.errors import PayloadError, ServingError
from djl_python.dialects.lmi.dialect import LmiDialect
from tests.dialects.exchange import inputs, model, task_answer
from tests.text_tasks import DIMENSIONS, LIMIT, result

LMI = LmiDialect()
LONG = "word " * LIMIT


def ask(task: str, body: Any) -> Any:
    return task_answer(LMI, task, "predict", body)


def request_of(task: str, body: Any) -> Any:
    (request,) = LMI.parse_task(task, inputs("predict", body), model()).requests
    return request


def test_a_text_has_a_vector_and_several_texts_have_vectors() -> None:
    vector = ask("feature-extraction", {"inputs": "a b"})
    assert len(vector) == DIMENSIONS
    assert ask("feature-extraction", {"inputs": ["a b", "c"]})[0] == vector
    assert len(ask("feature-extraction", {"inputs": ["a b"]})) == 1


def test_text_alone_is_a_body() -> None:
    call = inputs("predict", b"a b", content_type="text/plain")
    (request,) = LMI.parse_task("feature-extraction", call, model()).requests
    assert request.text.text == "a b"


def test_parameters_of_embeddings_may_be_beside_the_texts() -> None:
    for body in (
        {"inputs": "a", "normalize": False, "prompt_name": "q"},
        {"inputs": "a", "parameters": {"normalize": False, "prompt_name": "q"}, "normalize": True},
    ):
        request = request_of("feature-extraction", body)
        assert (request.normalize, request.text.prompt_name) == (False, "q")


@pytest.mark.parametrize(
    ("task", "body"),
    [
        ("feature-extraction", {"inputs": LONG}),
        ("sentence-similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}),
        ("text-ranking", {"query": "a", "texts": [LONG]}),
        ("zero-shot-classification", {"inputs": LONG, "parameters": {"candidate_labels": ["a"]}}),
    ],
)
def test_long_texts_to_embed_or_compare_are_cut_unless_the_request_says_no(task: str, body: Any) -> None:
    assert request_of(task, body).text.truncate == "right"
    ask(task, body)
    changed = copy.deepcopy(body)
    (changed if "query" in changed else changed.setdefault("parameters", {}))["truncate"] = False
    with pytest.raises(ServingError, match="tokens, expected at most 16"):
        ask(task, changed)


@pytest.mark.parametrize("task", ["text-classification", "token-classification"])
def test_texts_to_classify_must_fit_unless_the_request_truncates_them(task: str) -> None:
    with pytest.raises(ServingError, match="inputs: 18 tokens, expected at most 16"):
        ask(task, {"inputs": LONG})
    ask(task, {"inputs": LONG, "parameters": {"truncate": True}})


@pytest.mark.parametrize("task", ["feature-extraction", "sentence-similarity", "text-ranking"])
def test_texts_are_compared(task: str) -> None:
    assert ask(task, {"inputs": {"source_sentence": "a b", "sentences": ["b", "x"]}}) == [0.5, 0.0]
    assert ask(task, {"inputs": {"text": "a b", "text_pair": "b"}}) == {"score": 0.5}
    pairs = [{"text": "a b", "text_pair": "b"}, {"text": "c", "text_pair": "c"}]
    assert ask(task, {"inputs": pairs}) == [{"score": 0.5}, {"score": 1.0}]
    assert ask(task, {"query": "a b", "texts": ["x", "b"]}) == [{"index": 1, "score": 0.5}, {"index": 0, "score": 0.0}]


BEST = {"label": "question", "score": 0.625}
SECOND = {"label": "short", "score": 0.25}


@pytest.mark.parametrize(
    ("given", "parameters", "answer"),
    [
        ("a", {}, [BEST]),
        (["a", "b"], {}, [BEST, BEST]),
        ("a", {"top_k": 2}, [BEST, SECOND]),
        ("a", {"top_k": 1}, [BEST]),
        (["a"], {"top_k": 2}, [[BEST, SECOND]]),
        ("a", {"top_k": None}, [BEST, SECOND, {"label": "long", "score": 0.125}]),
        ({"text": "a", "text_pair": "b"}, {}, [BEST]),
        ([{"text": "a", "text_pair": "b"}, "c"], {}, [BEST, BEST]),
        ("a", {"function_to_apply": "none"}, [{"label": "question", "score": 6.25}]),
    ],
)
def test_labels(given: Any, parameters: Any, answer: Any) -> None:
    assert ask("text-classification", {"inputs": given, "parameters": parameters}) == answer


def test_labels_of_the_clients() -> None:
    parameters: dict[str, Any] = {"candidate_labels": "x, a"}
    body = {"inputs": "a b", "parameters": parameters}
    answer = {"sequence": "a b", "labels": ["a", "x"], "scores": [1.0, 0.0]}
    assert ask("zero-shot-classification", body) == answer
    assert ask("zero-shot-classification", body | {"inputs": ["a b"]}) == [answer]
    parameters |= {"multi_label": True, "hypothesis_template": "It is {}."}
    request = request_of("zero-shot-classification", body)
    assert (request.multi_label, request.hypothesis, request.labels) == (True, "It is {}.", ("x", "a"))


def test_entities() -> None:
    token = {"entity": "NAME", "score": 0.75, "index": 2, "word": "Bob", "start": 2, "end": 5}
    assert ask("token-classification", {"inputs": "a Bob"}) == [token]
    assert ask("token-classification", {"inputs": ["a Bob", "a"]}) == [[token], []]
    group = {"entity_group": "NAME", "score": 0.75, "word": "Bob", "start": 2, "end": 5}
    body = {"inputs": "a Bob", "parameters": {"aggregation_strategy": "max"}}
    assert ask("token-classification", body) == [group]
    assert ask("token-classification", {"inputs": "a Bob", "parameters": {"ignore_labels": ["NAME"]}}) == []


FIRST = {"score": 0.5, "start": 0, "end": 2, "answer": "so"}
NEXT = {"score": 0.25, "start": 3, "end": 5, "answer": "it"}


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"inputs": {"question": "q", "context": "so it"}}, FIRST),
        ({"question": "q", "context": "so it"}, FIRST),
        ({"inputs": {"question": "q", "context": "so it"}, "parameters": {"top_k": 2}}, [FIRST, NEXT]),
        ({"inputs": [{"question": "q", "context": "so it"}] * 2}, [FIRST, FIRST]),
    ],
)
def test_answers_in_a_context(body: Any, answer: Any) -> None:
    assert ask("question-answering", body) == answer


def test_parameters_of_questions() -> None:
    parameters = {"max_answer_len": 3, "doc_stride": 7, "handle_impossible_answer": True}
    body = {"inputs": {"question": "q", "context": "c"}, "parameters": parameters}
    request = request_of("question-answering", body)
    assert (request.max_answer_tokens, request.stride, request.may_have_none) == (3, 7, True)


def test_masks() -> None:
    first = {"score": 0.5, "token": 0, "token_str": "one", "sequence": "a one"}
    fillings = ask("fill-mask", {"inputs": "a [MASK]"})
    assert (fillings[0], len(fillings)) == (first, 5)
    assert [len(one) for one in ask("fill-mask", {"inputs": "[MASK] [MASK]", "parameters": {"top_k": 3}})] == [3, 3]
    assert ask("fill-mask", {"inputs": ["a [MASK]"], "parameters": {"top_k": 1}}) == [[first]]
    fillings = ask("fill-mask", {"inputs": "a [MASK]", "parameters": {"targets": "b"}})
    assert [one["token_str"] for one in fillings] == ["b"]


@pytest.mark.parametrize(
    ("task", "body", "field"),
    [
        ("feature-extraction", {}, "inputs"),
        ("feature-extraction", {"inputs": [""]}, "inputs[0]"),
        ("feature-extraction", {"inputs": "a", "parameters": {"dimensions": 0}}, "parameters.dimensions"),
        ("feature-extraction", {"inputs": {"source_sentence": "a"}}, "inputs.sentences"),
        ("text-ranking", {"query": "a"}, "texts"),
        ("text-ranking", {"inputs": "a"}, "inputs"),
        ("text-ranking", {"inputs": [{"text": "a"}]}, "inputs[0].text_pair"),
        ("text-classification", {"inputs": ["a"] * 2049}, "inputs"),
        ("text-classification", {"inputs": "a", "parameters": {"top_k": 0}}, "parameters.top_k"),
        (
            "text-classification",
            {"inputs": "a", "parameters": {"function_to_apply": "x"}},
            "parameters.function_to_apply",
        ),
        ("token-classification", {"inputs": 5}, "inputs"),
        ("question-answering", {"inputs": {"question": "q"}}, "inputs.context"),
        ("question-answering", {"question": "q"}, "inputs.context"),
        ("fill-mask", {"inputs": "a", "parameters": {"targets": []}}, "parameters.targets"),
        ("zero-shot-classification", {"inputs": "a"}, "parameters"),
        ("zero-shot-classification", {"inputs": "a", "parameters": {}}, "parameters.candidate_labels"),
        (
            "zero-shot-classification",
            {"inputs": "a", "parameters": {"candidate_labels": " ,"}},
            "parameters.candidate_labels",
        ),
        (
            "zero-shot-classification",
            {"inputs": "a", "parameters": {"candidate_labels": "b", "hypothesis_template": "It."}},
            "parameters.hypothesis_template",
        ),
        (
            "zero-shot-classification",
            {"inputs": "a", "parameters": {"candidate_labels": ["b", "c" * 30], "hypothesis_template": "{}" * 69}},
            "parameters.hypothesis_template",
        ),
        (
            "zero-shot-classification",
            {"inputs": ["a"] * 1025, "parameters": {"candidate_labels": ["b", "c"]}},
            "inputs",
        ),
    ],
)
def test_refusals_name_the_field(task: str, body: Any, field: str) -> None:
    call = inputs("predict", body)
    with pytest.raises(ServingError) as raised:
        LMI.parse_task(task, call, model())
    error = raised.value
    assert getattr(error, "field", None) == field
    assert error.message.startswith(f"{field}: ")
    assert LMI.error(error, model(), operation="predict", inputs=call).status == 424


def test_parameters_without_effect_are_reported_as_ignored() -> None:
    body = {"inputs": "a", "stream": True, "parameters": {"temperature": 1}}
    parsed = LMI.parse_task("text-classification", inputs("predict", body), model())
    assert parsed.formatter.headers["x-ignored-parameters"] == "parameters.temperature,stream"


def test_errors_of_the_model_have_the_place_of_the_text() -> None:
    parsed = LMI.parse_task("fill-mask", inputs("predict", {"inputs": ["[MASK]", "a"]}), model())
    with pytest.raises(PayloadError, match=r"inputs\[1\]: expected a text with \[MASK\]"):
        [result(request) for request in parsed.requests]
