"""Cohere's, langchain's and llama-index's clients against a real server: the vectors and scores of OpenAI's API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from djl_python.testing import RunningServer, running_server
from tests.encoders import write_encoder, write_modules
from tests.real import client_programs, clients

TEXTS = ["the cat sat on a mat", "two birds"]
QUERY, DOCUMENTS = "who sat", ["two birds saw it", "the cat", "a mat and a cat"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """An embedder and a cross-encoder with random weights; the latter is the default model."""
    if not clients.packages().is_dir():
        pytest.skip("the clients have not been installed: `make test` and `python -m tests.real.clients` do")
    folder = tmp_path_factory.mktemp("encoders")
    write_encoder(folder / "embed")
    write_modules(folder / "embed", "Pooling", "Normalize")
    write_encoder(folder / "rank", auto_class="AutoModelForSequenceClassification", num_labels=1)
    models = [word for name in ("embed", "rank") for word in ("-m", f"{name}={folder / name}")]
    environment = {"OPTION_THREADS": "1", "SERVING_DEFAULT_MODEL": "rank"}
    with running_server(*models, environment=environment) as running:
        yield running


def by_client(server: RunningServer, name: str) -> Any:
    """What a client makes of the texts, the query and the documents."""
    given = json.dumps({"texts": TEXTS, "query": QUERY, "documents": DOCUMENTS})
    command = [sys.executable, "-S", client_programs.__file__, name, server.url, given]
    # The hub's client asks nobody while it is offline, not even this server.
    environment = {**os.environ, "PYTHONPATH": str(clients.packages()), "HF_HUB_OFFLINE": "0"}
    run = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=240
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["langchain_openai", "langchain_huggingface", "llama_index_openai", "llama_index_tei"])
def test_vectors(server: RunningServer, name: str) -> None:
    body = {"model": "embed", "input": [*TEXTS, QUERY]}
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=30).json()
    expected = np.array([one["embedding"] for one in answer["data"]])
    np.testing.assert_allclose(np.array(by_client(server, name)), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["cohere_rerank", "langchain_cohere", "llama_index_tei_rerank"])
def test_rankings(server: RunningServer, name: str) -> None:
    body = {"model": "rank", "query": QUERY, "documents": DOCUMENTS, "top_n": 2}
    answer = httpx.post(f"{server.url}/v2/rerank", json=body, timeout=30).json()
    expected = [(one["index"], one["relevance_score"]) for one in answer["results"]]
    ranking = by_client(server, name)
    assert [index for index, _ in ranking] == [index for index, _ in expected]
    assert [score for _, score in ranking] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_every_program_is_run() -> None:
    marks = [mark for test in (test_vectors, test_rankings) for mark in test.pytestmark]  # type: ignore[attr-defined]
    assert {name for mark in marks for name in mark.args[1]} == {*client_programs.PROGRAMS}
