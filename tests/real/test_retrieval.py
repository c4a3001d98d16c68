"""An embedder of trained weights, a ranker and a chat model in one server: the templates' requests, and the documents'
retrieval program. The ranker has the embedder's weights, as no package is known with those of a trained cross-encoder.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from djl_python.testing import RunningServer, running_server
from tests.hub_templates import TEMPLATES, requests_of, send, with_checkpoint
from tests.packaging.documents import ROOT
from tests.packaging.markdown import with_output
from tests.processes import those_with_torch
from tests.real.minilm import minilm


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The template with the checkpoint that it names, which is here already, and the demo."""
    if not minilm().is_dir():
        pytest.skip("all-MiniLM-L6-v2 has not been fetched: `make test` and `python -m tests.real.minilm` do")
    folder = tmp_path_factory.mktemp("models")
    models = {
        "embedder": with_checkpoint("embeddings", minilm(), folder),
        "ranker": with_checkpoint("rerank", minilm(), folder),
        "demo": TEMPLATES / "demo",
    }
    with running_server(*(word for name, path in models.items() for word in ("-m", f"{name}={path}"))) as running:
        yield running


def test_requests_of_the_template_are_answered(server: RunningServer) -> None:
    answers = [send(server, one) for one in requests_of("embeddings")]
    assert [answer.status_code for answer in answers] == [200, 200]
    vectors = [one["embedding"] for one in answers[0].json()["data"]]
    assert [len(vector) for vector in vectors] == [384, 384]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1, abs=1e-5)
    ranked = answers[1].json()["results"]
    assert [one["index"] for one in ranked] == [1, 0]
    assert ranked[0]["relevance_score"] > ranked[1]["relevance_score"] + 0.2


def test_workers_of_encoders_import_no_torch(server: RunningServer) -> None:
    """Engines do, so that this would be seen."""
    with_torch = those_with_torch(server.process.pid)
    assert with_torch["djl_python.engine"] and not with_torch["djl_python.worker"]


def test_the_template_of_rankings_orders_documents_by_an_embedder_too(server: RunningServer) -> None:
    cohere, tei = (send(server, one).json() for one in requests_of("rerank"))
    best, second = cohere["results"]
    assert best["index"] == 1
    assert best["relevance_score"] > second["relevance_score"] + 0.2
    assert [one["index"] for one in tei] == [1, 0]


def test_the_documents_program_finds_the_text_and_asks_with_it(server: RunningServer, tmp_path: Path) -> None:
    ((program, prints),) = with_output((ROOT / "djl_python" / "docs" / "embeddings.md").read_text(), "python")
    text = program.text.replace("http://127.0.0.1:8080", server.url)
    run = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout == prints
