"""Requests about texts in any dialect: the documented types hold, and what is wrong with a field names it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from djl_python.core.errors import ParameterError, PayloadError
from djl_python.core.text_tasks import TEXT_TASKS
from djl_python.dialects import all_dialects
from djl_python.dialects.shared.base import Route
from tests.dialects.exchange import inputs, model, task_answer
from tests.dialects.test_refusals import MISSING, NOTHING, VALUES, path, places, same

APIS = all_dialects()
EMBED, SIMILAR, RANK = "feature-extraction", "sentence-similarity", "text-ranking"
LABEL, TAG, ANSWER = "text-classification", "token-classification", "question-answering"
FILL, ZERO = "fill-mask", "zero-shot-classification"

CUT = {"truncate": True, "truncation_direction": "left"}
POOLED = {"model": "m", "user": "u", "truncate_prompt_tokens": 5, "truncation_side": "left"}
READ = POOLED | {"input": ["a", [1, 2]], "add_special_tokens": True}
SENTENCES = {"source_sentence": "a b", "sentences": ["a", "c"]}
TENSOR = {"shape": [2], "datatype": "BYTES", "data": ["a", "b"]}
TEXT = {"name": "text_input", **TENSOR}

#: name -> dialect, task, operation, and a body with nearly all fields.
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "embeddings": (
        *("openai", EMBED, "embeddings"),
        READ | {"encoding_format": "base64", "dimensions": 2, "normalize": True},
    ),
    "score": (
        *("openai", RANK, "score"),
        POOLED | {"text_1": ["a", "b"], "text_2": ["c", "d"], "use_activation": True},
    ),
    "rerank": (
        *("openai", RANK, "rerank"),
        POOLED | {"query": "a", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True},
    ),
    "pooling": (
        *("openai", SIMILAR, "pooling"),
        READ | {"task": "token_embed", "encoding_format": "float", "dimensions": 2, "use_activation": False},
    ),
    "classify": (*("openai", LABEL, "classify"), READ | {"use_activation": False}),
    "embed": (
        *("tei", EMBED, "embed"),
        CUT | {"inputs": ["a", [1, 2]], "prompt_name": "q", "normalize": True, "dimensions": 2},
    ),
    "embed_all": (*("tei", EMBED, "embed_all"), CUT | {"inputs": "a b", "prompt_name": "q"}),
    "embed_sparse": (*("tei", EMBED, "embed_sparse"), CUT | {"inputs": [[1, 2]]}),
    "predict": (*("tei", LABEL, "predict"), CUT | {"inputs": [["a"], ["b", "c"]], "raw_scores": True}),
    "similarity": (*("tei", EMBED, "similarity"), {"inputs": SENTENCES, "parameters": CUT | {"prompt_name": "q"}}),
    "vertex": (*("tei", EMBED, "vertex"), {"instances": [CUT | {"inputs": ["a", [1, 2]]}, {"inputs": "b"}]}),
    "TEI's rerank": (
        *("tei", RANK, "rerank"),
        CUT | {"query": "a", "texts": ["a", "b"], "raw_scores": False, "return_text": True},
    ),
    **{
        f"{task} {api}": (api, task, operation, body)
        for api, operation in (("lmi", "predict"), ("tei", "compat_generate"))
        for task, body in (
            (
                EMBED,
                {"inputs": ["a", "b"], "normalize": True, "parameters": CUT | {"dimensions": 2, "prompt_name": "q"}},
            ),
            (SIMILAR, {"inputs": SENTENCES, "parameters": CUT}),
            (RANK, {"inputs": [{"text": "a", "text_pair": "b"}], "parameters": CUT | {"raw_scores": True}}),
            (LABEL, {"inputs": ["a", {"text": "a"}], "parameters": CUT | {"top_k": 2, "function_to_apply": "softmax"}}),
            (
                TAG,
                {"inputs": ["a B"], "parameters": CUT | {"aggregation_strategy": "first", "ignore_labels": ["O"]}},
            ),
            (
                ANSWER,
                {
                    "inputs": {"question": "q", "context": "a b"},
                    "parameters": {
                        **{"top_k": 2, "max_answer_len": 5, "doc_stride": 3},
                        "handle_impossible_answer": True,
                    },
                },
            ),
            (FILL, {"inputs": "[MASK] [MASK]", "parameters": CUT | {"top_k": 2, "targets": ["a"]}}),
            (
                ZERO,
                {
                    "inputs": ["a b"],
                    "parameters": CUT
                    | {"candidate_labels": ["a", "c"], "hypothesis_template": "{}", "multi_label": True},
                },
            ),
        )
    },
    "infer": (*("triton", EMBED, "infer"), {"id": "1", "inputs": [TEXT], "parameters": {"dimensions": 2}}),
    "infer of pairs": (*("triton", RANK, "infer"), {"inputs": [TEXT, {"name": "text_pair", **TENSOR}]}),
    "infer of labels": (
        *("triton", LABEL, "infer"),
        {"inputs": [TEXT], "parameters": {"top_k": 2}, "outputs": [{"name": "labels"}]},
    ),
}


def route_of(name: str) -> Route:
    api, _, operation, _ = CASES[name]
    routes: Sequence[Route] = (*APIS[api].routes, *APIS[api].shared)
    return next(route for route in routes if route.operation == operation)


def fits(value: Any, types: Any) -> bool:
    """Whether a value is an instance of one of the documented types."""
    for kind in types if isinstance(types, tuple) else (types,):
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
        return True
    return False


def test_every_task_has_a_case() -> None:
    assert {task for _, task, _, _ in CASES.values()} == TEXT_TASKS
    parsers = {(api, operation) for api, dialect in APIS.items() for _, operation in dialect.task_parsers}
    aliases = {("openai", "rerank_v1"), ("openai", "rerank_v2"), ("ollama", "embed"), ("ollama", "ollama_embeddings")}
    assert parsers - {(api, operation) for api, _, operation, _ in CASES.values()} == aliases


@pytest.mark.parametrize("name", CASES)
def test_bodies_and_answers_are_as_documented(name: str) -> None:
    api, task, operation, body = CASES[name]
    route = route_of(name)
    assert fits(body, route.request)
    answer = task_answer(APIS[api], task, operation, body)
    assert fits(answer, route.responses[200]["application/json"]), answer


def refusal(name: str, at: tuple[Any, ...], value: Any) -> PayloadError | ParameterError | None:
    """What is said of the body with `value` in this place; None: it is taken."""
    api, task, operation, body = CASES[name]
    changed = holder = json.loads(json.dumps(body))
    for key in at[:-1]:
        holder = holder[key]
    if value is MISSING:
        del holder[at[-1]]
    else:
        holder[at[-1]] = value
    try:
        APIS[api].parse_task(task, inputs(operation, changed, api), model())
    except (PayloadError, ParameterError) as error:
        return error
    return None


#: A field -> another that may be said to be wrong beside it.
BESIDE = {"text_1": "text_2", "parameters": "parameters.candidate_labels"}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_field_is_named(name: str) -> None:
    tensors = ("text_input", "text_pair") if name.startswith("infer") else ()  # which are named by what they hold
    for at in places(CASES[name][3]):
        place = path(at)
        for value in VALUES:
            if (error := refusal(name, at, value)) is None:
                continue
            field = error.field
            assert field, (place, value, error.message)
            assert same(field, place) or field in (BESIDE.get(place), *tensors), (place, value, field, error.message)
            assert error.message.startswith(f"{field}: "), (place, error.message)


@pytest.mark.parametrize("name", CASES)
def test_a_value_of_a_wrong_type_is_refused_in_every_field(name: str) -> None:
    for at in places(CASES[name][3]):
        assert refusal(name, at, NOTHING) is not None, path(at)
