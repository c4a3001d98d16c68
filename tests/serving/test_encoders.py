"""Encoders end to end, over real sockets and processes: in every API the vectors and scores of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers
import tritonclient.http as triton
from huggingface_hub import InferenceClient

from djl_python.testing import RunningServer, running_server
from tests.encoders import write_encoder, write_modules

TEXTS = ["the cat sat on a mat", "two birds"]
QUERY, DOCUMENTS = "who sat", ["two birds saw it", "the cat", "a mat and a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedder and a cross-encoder, small and with random weights."""
    root = tmp_path_factory.mktemp("encoders")
    write_encoder(root / "embed")
    write_modules(root / "embed", "Pooling", "Normalize")
    write_encoder(root / "rank", auto_class="AutoModelForSequenceClassification", num_labels=1)
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    names = ("embed", "rank")
    models = [word for name in names for word in ("-m", f"{name}={folder / name}")]
    with running_server(*models, environment={"OPTION_THREADS": "1"}) as running:
        yield running


@pytest.fixture(scope="module")
def vectors(folder: Path) -> Any:
    """transformers' vectors of the texts, pooled and of length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "embed")
    model = transformers.AutoModel.from_pretrained(folder / "embed").eval()
    with torch.inference_mode():
        means = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in TEXTS]
    return torch.nn.functional.normalize(torch.stack(means)).numpy()


@pytest.fixture(scope="module")
def scores(folder: Path) -> list[float]:
    """transformers' scores of the documents."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "rank")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "rank").eval()
    with torch.inference_mode():
        pairs = [tokenizer(QUERY, one, return_tensors="pt") for one in DOCUMENTS]
        logits = [model(**pair).logits[0, 0] for pair in pairs]
    return torch.sigmoid(torch.stack(logits)).tolist()


def post(server: RunningServer, path: str, body: Any) -> Any:
    answer = httpx.post(server.url + path, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_embeddings_in_every_api(server: RunningServer, vectors: Any) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    embeddings: list[Any] = [[one.embedding for one in client.embeddings.create(model="embed", input=TEXTS).data]]
    embeddings.append(post(server, "/embed?model_name=embed", {"inputs": TEXTS}))
    embeddings.append(post(server, "/predictions/embed", {"inputs": TEXTS}))
    embeddings.append([one["data"] for one in post(server, "/pooling", {"model": "embed", "input": TEXTS})["data"]])
    hub = InferenceClient(model=f"{server.url}/?model_name=embed", token="none")
    embeddings.append([hub.feature_extraction(text)[0] for text in TEXTS])
    texts = triton.InferInput("text_input", [2], "BYTES")
    texts.set_data_from_numpy(np.array([text.encode() for text in TEXTS], dtype=object))
    kserve = triton.InferenceServerClient(server.url.removeprefix("http://"))
    embeddings.append(kserve.infer("embed", [texts]).as_numpy("embedding"))
    for one in embeddings:
        np.testing.assert_allclose(np.array(one), vectors, atol=1e-5)


def test_scores_in_every_api(server: RunningServer, scores: list[float]) -> None:
    best = sorted(range(len(scores)), key=lambda index: -scores[index])
    ranked = post(server, "/v1/rerank", {"model": "rank", "query": QUERY, "documents": DOCUMENTS})["results"]
    assert [one["index"] for one in ranked] == best
    assert [one["relevance_score"] for one in ranked] == pytest.approx([scores[index] for index in best], abs=1e-5)
    ranked = post(server, "/rerank?model_name=rank", {"query": QUERY, "texts": DOCUMENTS})
    assert [one["index"] for one in ranked] == best
    scored = post(server, "/score", {"model": "rank", "text_1": QUERY, "text_2": DOCUMENTS})["data"]
    assert [one["score"] for one in scored] == pytest.approx(scores, abs=1e-5)
    pairs = [{"text": QUERY, "text_pair": document} for document in DOCUMENTS]
    answers = post(server, "/predictions/rank", {"inputs": pairs})
    assert [one["score"] for one in answers] == pytest.approx(scores, abs=1e-5)


def test_similarities_are_cosines(server: RunningServer, vectors: Any) -> None:
    cosine = float(vectors[0] @ vectors[1])
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": [TEXTS[1]]}}
    assert post(server, "/similarity?model_name=embed", body) == pytest.approx([cosine], abs=1e-5)
    hub = InferenceClient(model=f"{server.url}/?model_name=embed", token="none")
    assert hub.sentence_similarity(TEXTS[0], other_sentences=[TEXTS[1]]) == pytest.approx([cosine], abs=1e-5)


def test_teis_pages_describe_encoders(server: RunningServer) -> None:
    assert httpx.get(f"{server.url}/info?model_name=embed").json()["model_type"] == {"embedding": {"pooling": "mean"}}
    assert "reranker" in httpx.get(f"{server.url}/info?model_name=rank").json()["model_type"]
    (tokens,) = post(server, "/tokenize?model_name=embed", {"inputs": "the cat"})
    assert [token["text"] for token in tokens] == ["[CLS]", "the", "cat", "[SEP]"]
    ids = [token["id"] for token in tokens]
    assert post(server, "/decode?model_name=embed", {"ids": ids}) == ["the cat"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {"model": "embed", "input": "cat " * 70}, 400),
        ("/v1/embeddings", {"model": "embed", "input": [[999]]}, 400),
        ("/embed?model_name=embed", {"inputs": "cat " * 70}, 413),
        ("/embed_sparse?model_name=embed", {"inputs": "cat"}, 424),
        ("/v1/rerank", {"model": "rank", "query": QUERY, "documents": ["cat " * 70]}, 400),
        ("/predictions/rank", {"inputs": "cat"}, 424),
    ],
)
def test_refusals(server: RunningServer, path: str, body: Any, status: int) -> None:
    assert httpx.post(server.url + path, json=body, timeout=30).status_code == status


def test_long_texts_are_cut_where_the_request_says_so(server: RunningServer) -> None:
    long = {"inputs": "cat " * 70 + "bird", "truncate": True}
    right = post(server, "/embed?model_name=embed", long)
    left = post(server, "/embed?model_name=embed", long | {"truncation_direction": "Left"})
    assert right != left
