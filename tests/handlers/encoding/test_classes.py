"""Classifiers from the handler: labels, relevance, labels of a request's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from djl_python.core.errors import ParameterError
from djl_python.core.text_tasks import Activation, ClassifyRequest, ScoreRequest, TextInput, ZeroShotRequest
from djl_python.handlers.encoding import texts
from djl_python.text.tokens.long_texts import PIECE_CHARS
from tests.encoders import WORDS, write_encoder
from tests.handlers.encoding.harness import ServedEncoder
from tests.handlers.encoding.test_embeddings import ids_of

_CLASSIFIER = "AutoModelForSequenceClassification"


@torch.inference_mode()
def logits(model: Any, text: str, pair: str | None = None) -> Any:
    first, second = ids_of(text), [] if pair is None else ids_of(pair)[1:]
    types = [0] * len(first) + [1] * len(second)
    output = model(torch.tensor([first + second]), token_type_ids=torch.tensor([types]))
    return output.logits[0].double().numpy()


def softmax(numbers: Any) -> Any:
    return np.exp(numbers) / np.exp(numbers).sum()


def sigmoid(numbers: Any) -> Any:
    return 1 / (1 + np.exp(-numbers))


async def test_labels_come_best_first(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, auto_class=_CLASSIFIER, id2label={0: "bad", 1: "fair", 2: "good"})
    served = await ServedEncoder(tmp_path).load()
    assert served.handler.task == "text-classification"
    text = TextInput(text="the cat sat")
    whole, two, raw, each = await served.ask(
        ClassifyRequest(text=text),
        ClassifyRequest(text=text, top=2),
        ClassifyRequest(text=text, activation=Activation.NONE),
        ClassifyRequest(text=text, activation=Activation.SIGMOID),
    )
    expected = logits(model, "the cat sat")
    assert whole["values"] == pytest.approx(softmax(expected), abs=1e-5)
    names = ["bad", "fair", "good"]
    assert [label["name"] for label in whole["labels"]] == [names[at] for at in np.argsort(-expected)]
    assert two["labels"] == whole["labels"][:2]
    assert raw["values"] == pytest.approx(expected, abs=1e-5)
    assert each["values"] == pytest.approx(sigmoid(expected), abs=1e-5)
    assert len(served.engine.requests[0]) == 1
    with pytest.raises(ParameterError, match="scores of two texts are for models with one label; this one has 3: bad"):
        await served.ask(ScoreRequest(text=TextInput(text="the", pair="cat", field="query")))


@pytest.mark.parametrize(
    ("said", "activate"),
    [
        ({}, sigmoid),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda numbers: numbers),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, lambda numbers: numbers),
        ({"problem_type": "regression"}, lambda numbers: numbers),
    ],
)
async def test_a_cross_encoder_scores_pairs(tmp_path: Path, said: dict[str, Any], activate: Any) -> None:
    model = write_encoder(tmp_path, auto_class=_CLASSIFIER, num_labels=1, **said)
    served = await ServedEncoder(tmp_path).load()
    assert served.handler.task == "text-ranking"
    documents = ["two birds", "a cat on it"]
    scores = await served.ask(*(ScoreRequest(text=TextInput(text="who sat", pair=one)) for one in documents))
    expected = [float(activate(logits(model, "who sat", one)[0])) for one in documents]
    assert [one["value"] for one in scores] == pytest.approx(expected, abs=1e-5)
    (labelled,) = await served.ask(ClassifyRequest(text=TextInput(text="who sat", pair="two birds")))
    assert labelled["values"] == pytest.approx(expected[:1], abs=1e-5)


async def test_a_pair_that_is_too_long_loses_of_the_longer_text(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, auto_class=_CLASSIFIER, num_labels=1)
    served = await ServedEncoder(tmp_path).load(max_input_tokens=9)
    text = TextInput(text="who sat", pair="the cat sat on a mat", truncate="right")
    (one,) = await served.ask(ScoreRequest(text=text))
    assert one["value"] == pytest.approx(float(sigmoid(logits(model, "who sat", "the cat sat on")[0])), abs=1e-5)


async def test_labels_of_the_requests_own(tmp_path: Path) -> None:
    labels = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}
    model = write_encoder(tmp_path, auto_class=_CLASSIFIER, id2label=labels)
    served = await ServedEncoder(tmp_path).load(task="zero-shot-classification")
    text, candidates = TextInput(text="the cat sat"), ("birds", "mat", "cat")
    one, each = await served.ask(
        *(
            ZeroShotRequest(text=text, labels=candidates, hypothesis="it is {}", multi_label=multi)
            for multi in (False, True)
        )
    )
    rows = np.array([logits(model, "the cat sat", f"it is {label}") for label in candidates])
    exclusive = dict(zip(candidates, softmax(rows[:, 2]), strict=True))
    independent = {
        label: float(np.exp(row[2]) / (np.exp(row[0]) + np.exp(row[2])))
        for label, row in zip(candidates, rows, strict=True)
    }
    for result, expected in ((one, exclusive), (each, independent)):
        assert [label["name"] for label in result["labels"]] == sorted(expected, key=lambda label: -expected[label])
        assert {label["name"]: label["score"] for label in result["labels"]} == pytest.approx(expected, abs=1e-5)


async def test_without_inference_there_are_no_labels_of_ones_own(tmp_path: Path) -> None:
    write_encoder(tmp_path, auto_class=_CLASSIFIER, id2label={0: "bad", 1: "good"})
    served = await ServedEncoder(tmp_path).load()
    with pytest.raises(ParameterError, match="with a label entailment; this one has bad, good"):
        await served.ask(ZeroShotRequest(text=TextInput(text="the cat"), labels=("cat",)))


@pytest.mark.parametrize("side", ["left", "right"])
async def test_a_long_text_that_is_read_with_many_is_cut_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: texts.Side
) -> None:
    """Work counted in characters: else a query of a megabyte is tokenized with each of two thousand documents."""
    model = write_encoder(tmp_path, auto_class=_CLASSIFIER, num_labels=1)
    served = await ServedEncoder(tmp_path).load(max_input_tokens=9)
    query, documents = " ".join(WORDS * 30_000), [" ".join(WORDS[first:]) for first in range(10)] * 20
    tokenized: list[int] = []
    sequence_of = texts.sequence_of

    def counted(tokenizer: Any, text: str, pair: str | None, **kwargs: Any) -> Any:
        tokenized.append(len(text) + len(pair or ""))
        return sequence_of(tokenizer, text, pair, **kwargs)

    monkeypatch.setattr(texts, "sequence_of", counted)
    answers = await served.ask(
        *(ScoreRequest(text=TextInput(text=query, pair=document, truncate=side)) for document in documents)
    )
    assert sum(tokenized) < PIECE_CHARS + len(documents) * 300 and len(query) > 10 * PIECE_CHARS
    words = query.split()
    for document, one in zip(documents[:3], answers, strict=False):
        own = document.split()
        kept = (words[:3], own[:3]) if side == "right" else (words[-3:], own[-3:])
        expected = float(sigmoid(logits(model, *map(" ".join, kept))[0]))
        assert one["value"] == pytest.approx(expected, abs=1e-5)
