"""Templates of models that are no decoders, with small checkpoints of random weights: transformers' scores, texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from djl_python.testing import RunningServer, running_server
from tests.encoders import write_encoder
from tests.hub_templates import requests_of, send, with_checkpoint
from tests.packaging.markdown import Curl
from tests.pipelines.encoders import build_translator

LABELS = {0: "NEGATIVE", 1: "POSITIVE"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoint of each template."""
    folder = tmp_path_factory.mktemp("checkpoints")
    paths = {name: folder / name for name in ("rerank", "classification", "summarization")}
    write_encoder(paths["rerank"], auto_class="AutoModelForSequenceClassification", num_labels=1)
    write_encoder(
        paths["classification"], "distilbert", "AutoModelForSequenceClassification", num_labels=2, id2label=LABELS
    )
    build_translator(paths["summarization"])
    return paths


@pytest.fixture(scope="module")
def server(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The templates side by side, by the names of their READMEs."""
    folder = tmp_path_factory.mktemp("models")
    names = {"rerank": "ranker", "classification": "classifier", "summarization": "summarizer"}
    copies = {name: with_checkpoint(template, checkpoints[template], folder) for template, name in names.items()}
    options = [word for name, copy in copies.items() for word in ("-m", f"{name}={copy}")]
    with running_server(*options, environment={"OPTION_THREADS": "1"}, start_timeout_s=240) as running:
        yield running


def answers(server: RunningServer, template: str) -> list[tuple[Curl, Any]]:
    """The README's requests, each with its answer."""
    pairs = [(curl, send(server, curl)) for curl in requests_of(template)]
    assert [answer.status_code for _, answer in pairs] == [200] * len(pairs), [answer.text for _, answer in pairs]
    return [(curl, answer.json()) for curl, answer in pairs]


@torch.inference_mode()
def logits(path: Path, *texts: tuple[str, ...]) -> torch.Tensor:
    """transformers' logits of texts, or of pairs."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (model.config.model_type == "bert")
    encoded = [tokenizer(*text, return_tensors="pt") for text in texts]
    return torch.cat([model(**{name: one[name] for name in names}).logits for one in encoded])


def test_rerank(server: RunningServer, checkpoints: dict[str, Path]) -> None:
    (cohere, cohere_answer), (tei, tei_answer) = answers(server, "rerank")
    asked = json.loads(cohere.body or "")
    expected = logits(checkpoints["rerank"], *((asked["query"], text) for text in asked["documents"])).sigmoid()[:, 0]
    best = expected.argsort(descending=True).tolist()[: asked["top_n"]]
    results = cohere_answer["results"]
    assert [one["index"] for one in results] == best
    assert [one["relevance_score"] for one in results] == pytest.approx(expected[best].tolist(), abs=1e-5)
    assert [one["document"]["text"] for one in results] == [asked["documents"][index] for index in best]
    asked = json.loads(tei.body or "")
    expected = logits(checkpoints["rerank"], *((asked["query"], text) for text in asked["texts"]))[:, 0]
    assert {one["index"]: one["score"] for one in tei_answer} == pytest.approx(
        dict(enumerate(expected.tolist())), abs=1e-5
    )


def test_classification(server: RunningServer, checkpoints: dict[str, Path]) -> None:
    (one, best), (several, all_labels), (_, tei), (_, vllm) = answers(server, "classification")
    text, texts = json.loads(one.body or "")["inputs"], json.loads(several.body or "")["inputs"]
    expected = [
        dict(zip(LABELS.values(), row, strict=True))
        for row in logits(checkpoints["classification"], *((text,) for text in texts)).softmax(-1).tolist()
    ]
    assert texts[0] == text
    assert {entry["label"]: entry["score"] for entry in all_labels[0]} == pytest.approx(expected[0], abs=1e-5)
    assert {entry["label"]: entry["score"] for entry in all_labels[1]} == pytest.approx(expected[1], abs=1e-5)
    assert best == all_labels[0][:1]
    assert tei == all_labels
    assert [entry["label"] for entry in vllm["data"]] == [labels[0]["label"] for labels in all_labels]


def test_summarization(server: RunningServer, checkpoints: dict[str, Path]) -> None:
    ((curl, answer),) = answers(server, "summarization")
    path, asked = checkpoints["summarization"], json.loads(curl.body or "")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    encoded = tokenizer(asked["inputs"], return_tensors="pt", truncation=True)
    made = model.generate(
        input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], do_sample=False, **asked["parameters"]
    )
    assert answer == [{"summary_text": tokenizer.decode(made[0], skip_special_tokens=True)}]
    wrong = httpx.post(f"{server.url}/predictions/summarizer", json={"inputs": 5}, timeout=30)
    assert wrong.status_code in (400, 422, 424), wrong.text
