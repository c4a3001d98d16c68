"""Models that generate no text with a decoder, set up as for LMI's Transformers handler, from a real server.

The bodies are those of transformers' pipelines, in LMI's `inputs` and `parameters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from djl_python.testing import RunningServer, running_server
from tests.pipelines.encoders import build_encoder, build_translator

#: A model's directory -> its checkpoint's head, and its serving.properties.
MODELS = {
    "answers": ("BertForQuestionAnswering", "engine=Python\noption.task=question-answering\n"),
    "classes": ("BertForSequenceClassification", "option.entryPoint=djl_python.huggingface\noption.device_map=cpu\n"),
    "tokens": ("BertForTokenClassification", "option.rolling_batch=auto\nbatch_size=4\nmax_batch_delay=1\n"),
    "masks": ("BertForMaskedLM", ""),
    "rewrites": ("", "engine=Python\noption.rolling_batch=disable\noption.tensor_parallel_degree=1\n"),
    "engine": ("", "engine=MPI\noption.rolling_batch=lmi-dist\noption.max_rolling_batch_size=8\n"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    store = tmp_path_factory.mktemp("models")
    for name, (head, properties) in MODELS.items():
        path = build_encoder(store / name, head) if head else build_translator(store / name)
        (path / "serving.properties").write_text(properties)
    with running_server("-s", str(store), start_timeout_s=240) as running:
        yield running


def ask(server: RunningServer, model: str, body: Any) -> Any:
    response = httpx.post(f"{server.url}/predictions/{model}", json=body, timeout=60)
    assert response.status_code == 200, (response.text, server.output())
    return response.json()


def test_each_answers_in_its_pipelines_shape(server: RunningServer) -> None:
    question = {"question": "who sat", "context": "the cat sat on a mat"}
    answer = ask(server, "answers", {"inputs": question})
    assert question["context"][answer["start"] : answer["end"]] == answer["answer"]
    (classified,) = ask(server, "classes", {"inputs": "the cat sat"})
    assert classified["label"] in ("LABEL_0", "LABEL_1") and 0 < classified["score"] <= 1
    ((first, *_),) = ask(server, "tokens", {"inputs": ["the cat"]})
    assert (first["word"], first["entity"]) == ("the", first["entity"])
    best, *others = ask(server, "masks", {"inputs": "the [MASK] sat", "parameters": {"top_k": 3}})
    assert len(others) == 2 and best["score"] >= others[0]["score"]
    (rewritten,) = ask(server, "rewrites", {"inputs": "the cat sat", "parameters": {"max_new_tokens": 3}})
    assert list(rewritten) == ["generated_text"]


def test_an_encoder_decoder_model_answers_as_the_engine_that_its_owner_names(server: RunningServer) -> None:
    parameters = {"max_new_tokens": 3, "details": True}
    rewritten = ask(server, "engine", {"inputs": "the cat sat", "parameters": parameters})
    assert ask(server, "rewrites", {"inputs": "the cat sat", "parameters": parameters}) == [rewritten]
    assert ask(server, "engine", {"inputs": ["the cat sat"] * 2, "parameters": parameters}) == [rewritten] * 2
    assert "option.rolling_batch=lmi-dist has no effect" in server.output()
    chat = {"messages": [{"role": "user", "content": "the cat sat"}]}
    response = httpx.post(f"{server.url}/predictions/engine", json=chat, timeout=60)
    assert response.status_code == 424 and "messages: this model takes no chats" in response.text


def test_a_wrong_body_is_its_own_clients_error(server: RunningServer) -> None:
    response = httpx.post(f"{server.url}/predictions/classes", content=b"{", timeout=60)
    assert response.status_code == 424 and "not valid JSON" in response.text
