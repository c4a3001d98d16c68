"""Embeddings, scores and labels over real sockets: which dialect answers, and what the clients of each API read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.http as triton
from huggingface_hub import InferenceClient

from djl_python.dialects.ollama.dialect import OllamaDialect
from djl_python.dialects.openai.dialect import OpenAIDialect
from djl_python.dialects.tei.dialect import TeiDialect
from djl_python.testing import RunningServer, running_server
from tests import text_tasks
from tests.text_tasks import DIMENSIONS, overlap

#: Name -> task.
MODELS = {
    "embed": "feature-extraction",
    "rank": "text-ranking",
    "classify": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "fill": "fill-mask",
    "zero": "zero-shot-classification",
}
#: Paths that are for these models alone -> the document's example, and a task that has it.
EXAMPLES = {
    route.path: (route.example, task)
    for api in (OpenAIDialect(), TeiDialect(), OllamaDialect())
    for route in api.routes
    for task, operation in api.task_parsers
    if operation == route.operation
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A model for each task."""
    folder = tmp_path_factory.mktemp("models")
    models = []
    for name, task in MODELS.items():
        path = folder / name
        path.mkdir()
        shutil.copy(Path(text_tasks.__file__), path / "model.py")
        (path / "serving.properties").write_text(f"option.task={task}\noption.entryPoint=model.py:Canned\n")
        models += ["-m", f"{name}={path}"]
    with running_server(*models) as running:
        yield running


def post(server: RunningServer, path: str, body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=30)


def hub(server: RunningServer, name: str) -> InferenceClient:
    return InferenceClient(model=f"{server.url}/?model_name={name}", token="none")


# ------------------------------------------------------------------------------------------------ paths


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/predictions/rank", {"inputs": {"text": "a b", "text_pair": "a"}}, {"score": 0.5}),
        ("/invocations?model_name=rank", {"inputs": {"text": "a b", "text_pair": "a"}}, {"score": 0.5}),
        ("/rerank?model_name=rank", {"query": "a b", "texts": ["a"]}, [{"index": 0, "score": 0.5}]),
        ("/similarity?model_name=embed", {"inputs": {"source_sentence": "a", "sentences": ["a", "b"]}}, [1.0, 0.0]),
        ("/decode?model_name=embed", {"ids": [1, 2]}, ["x xx"]),
    ],
)
def test_paths_that_name_the_model(server: RunningServer, path: str, body: Any, answer: Any) -> None:
    response = post(server, path, body)
    assert (response.status_code, response.json()) == (200, answer)


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_are_answered_as_they_are(server: RunningServer, path: str) -> None:
    example, task = EXAMPLES[path]
    name = next(name for name, its in MODELS.items() if its == ("feature-extraction" if "simil" in task else task))
    body = example | {"model": name} if "model" in example else example
    answer = post(server, f"{path}?model_name={name}", body)
    assert answer.status_code == 200, answer.text


def test_the_body_says_which_api_ranks(server: RunningServer) -> None:
    body = {"model": "rank", "query": "a b", "documents": ["x", "a b"], "top_n": 1}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        ranking = post(server, path, body).json()
        assert [(one["index"], one["relevance_score"]) for one in ranking["results"]] == [(1, 1.0)]
    refused = post(server, "/rerank?model_name=rank", {"query": "a", "texts": []})
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")
    refused = post(server, "/rerank", {"model": "rank", "query": "a", "documents": []})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")


def test_the_task_says_which_api_describes_the_model(server: RunningServer) -> None:
    info = httpx.get(f"{server.url}/info?model_name=classify").json()
    assert info["model_type"]["classifier"]["id2label"]["2"] == "question"
    tokens = post(server, "/tokenize?model_name=embed", {"inputs": ["a b"]}).json()
    assert [token["special"] for token in tokens[0]] == [True, False, False, True]
    counted = post(server, "/tokenize", {"model": "embed", "prompt": "a b"}).json()
    assert (counted["count"], counted["tokens"]) == (4, [token["id"] for token in tokens[0]])


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/v1/embeddings?model_name=rank", 400, "model 'rank' is for text-ranking, and this path is not; ask it at "),
        ("/embed?model_name=rank", 424, "model 'rank' is for text-ranking, and this path is not; ask it at "),
        ("/v2/models/fill/infer", 400, "model 'fill' is for fill-mask, and this path is not; ask it at "),
        ("/generate?model_name=embed", 400, "model 'embed' is for feature-extraction, and this path is not; "),
        ("/v1/completions?model_name=embed", 400, "model 'embed' is for feature-extraction, and this path is not; "),
    ],
)
def test_a_model_of_another_task(server: RunningServer, path: str, status: int, error: str) -> None:
    response = post(server, path, {"input": "a", "inputs": "a", "prompt": "a"})
    assert response.status_code == status
    assert error in response.text.replace("\\u0027", "'")


def test_metadata_is_that_of_the_task(server: RunningServer) -> None:
    metadata = httpx.get(f"{server.url}/v2/models/embed").json()
    assert [output["name"] for output in metadata["outputs"]] == ["embedding"]


# ------------------------------------------------------------------------------------------------ clients


def test_openais_client(server: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    embeddings = client.embeddings.create(model="embed", input=["a b", "c"])  # in base64, which it decodes
    assert [len(one.embedding) for one in embeddings.data] == [DIMENSIONS] * 2
    plain = client.embeddings.create(model="embed", input="c", encoding_format="float", dimensions=2)
    assert plain.data[0].embedding == pytest.approx(embeddings.data[1].embedding[:2])
    assert (embeddings.model, embeddings.usage.total_tokens) == ("embed", 7)
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model="embed", input=["a", "word " * 20])
    assert (raised.value.param, raised.value.code) == ("input[1]", "context_length_exceeded")


def test_hugging_faces_client(server: RunningServer) -> None:
    assert hub(server, "embed").feature_extraction("a b", normalize=True).shape == (1, DIMENSIONS)
    assert hub(server, "embed").sentence_similarity("a b", other_sentences=["b", "x"]) == [0.5, 0.0]
    labels = hub(server, "classify").text_classification("a", top_k=2)
    assert [(one.label, one.score) for one in labels] == [("question", 0.625), ("short", 0.25)]
    (entity,) = hub(server, "tag").token_classification("a Bob")
    assert (entity.entity_group, entity.word, entity.start) == ("NAME", "Bob", 2)
    answer: Any = hub(server, "answer").question_answering(question="q", context="so it")
    assert (answer.answer, answer.start, answer.end) == ("so", 0, 2)
    masks = hub(server, "fill").fill_mask("a [MASK]", top_k=2)
    assert [(one.token_str, one.sequence) for one in masks] == [("one", "a one"), ("two", "a two")]
    zero = hub(server, "zero").zero_shot_classification("a b", candidate_labels=["x", "a"])
    assert [(one.label, one.score) for one in zero] == [("a", 1.0), ("x", 0.0)]


def test_tritons_client(server: RunningServer) -> None:
    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    texts = triton.InferInput("text_input", [2], "BYTES")
    texts.set_data_from_numpy(np.array([b"a b", b"c"], dtype=object))
    vectors = client.infer("embed", [texts]).as_numpy("embedding")
    assert (vectors.shape, vectors.dtype) == ((2, DIMENSIONS), np.float32)
    pairs = triton.InferInput("text_pair", [1], "BYTES")
    pairs.set_data_from_numpy(np.array([b"a"], dtype=object))
    assert client.infer("rank", [texts, pairs]).as_numpy("scores").tolist() == [overlap("a b", "a"), 0.0]
    labels = client.infer("classify", [texts], outputs=[triton.InferRequestedOutput("labels")]).as_numpy("labels")
    assert labels.tolist()[0][0] == b"question"
