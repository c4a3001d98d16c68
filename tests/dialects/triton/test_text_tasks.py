"""KServe's infer for embeddings, scores and labels, and the metadata of such models."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from djl_python.core.errors import ServingError
from djl_python.dialects.shared.views import ModelStatus
from djl_python.dialects.triton.dialect import TritonDialect
from djl_python.dialects.triton.pages import PAGES
from tests.dialects.exchange import inputs, model, task_answer
from tests.text_tasks import DIMENSIONS, result

TRITON = TritonDialect()


def tensor(name: str, *texts: str) -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}


def ask(task: str, *tensors: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = task_answer(TRITON, task, "infer", {"inputs": list(tensors), **more})
    return answer


def test_embeddings() -> None:
    answer = ask("feature-extraction", tensor("text_input", "a", "b c"), id="7")
    (output,) = answer.pop("outputs")
    assert answer == {"model_name": "served", "model_version": "1", "id": "7"}
    assert (output["name"], output["datatype"], output["shape"]) == ("embedding", "FP32", [2, DIMENSIONS])
    assert len(output["data"]) == 2 * DIMENSIONS


def test_parameters() -> None:
    answer = ask("feature-extraction", tensor("text_input", "a"), parameters={"dimensions": 2, "normalize": True})
    assert answer["outputs"][0]["shape"] == [1, 2]
    with pytest.raises(ServingError, match="dimensions: expected an integer >= 1"):
        ask("feature-extraction", tensor("text_input", "a"), parameters={"dimensions": 0})


def test_scores() -> None:
    answer = ask("text-ranking", tensor("text_input", "a b", "c"), tensor("text_pair", "a"))
    assert answer["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [2], "data": [0.5, 0.0]}]


def test_labels() -> None:
    scores, labels = ask("text-classification", tensor("text_input", "a", "b"), parameters={"top_k": 2})["outputs"]
    assert (scores["shape"], scores["data"]) == ([2, 2], [0.625, 0.25] * 2)
    assert (labels["shape"], labels["data"]) == ([2, 2], ["question", "short"] * 2)
    (only,) = ask("text-classification", tensor("text_input", "a"), outputs=[{"name": "labels"}])["outputs"]
    assert only["data"] == ["question", "short", "long"]


def test_binary_tensors() -> None:
    body = {"inputs": [tensor("text_input", "a")], "parameters": {"binary_data_output": True, "top_k": 1}}
    parsed = TRITON.parse_task("text-classification", inputs("infer", body), model())
    for request in parsed.requests:
        parsed.formatter.push(result(request))
    data = parsed.formatter.end()
    length = int(parsed.formatter.headers["inference-header-content-length"])
    scores, labels = json.loads(data[:length])["outputs"]
    assert (scores["parameters"], labels["parameters"]) == ({"binary_data_size": 4}, {"binary_data_size": 12})
    assert data[length:] == struct.pack("<fI", 0.625, 8) + b"question"


@pytest.mark.parametrize(
    ("task", "tensors", "message"),
    [
        ("feature-extraction", [tensor("text", "a")], 'inputs: there is no input "text", expected text_input'),
        ("text-ranking", [tensor("text_input", "a")], "inputs: expected a tensor text_pair of datatype BYTES"),
        ("feature-extraction", [tensor("text_input", "")], "text_input: expected non-empty texts"),
        (
            "text-ranking",
            [tensor("text_input", "a", "b", "c"), tensor("text_pair", "a", "b")],
            "text_pair: expected 1 element, or 3, one for each text, got 2",
        ),
        (
            "feature-extraction",
            [{"name": "text_input", "shape": [1], "datatype": "FP32", "data": [1.0]}],
            "text_input: expected datatype BYTES, got FP32",
        ),
    ],
)
def test_refusals(task: str, tensors: list[Any], message: str) -> None:
    with pytest.raises(ServingError) as raised:
        ask(task, *tensors)
    assert raised.value.message == message


def test_an_output_that_there_is_not() -> None:
    with pytest.raises(ServingError, match=r"outputs\[0\]\.name: expected embedding, got 'text_output'"):
        ask("feature-extraction", tensor("text_input", "a"), outputs=[{"name": "text_output"}])


def test_a_task_without_tensors_is_asked_elsewhere() -> None:
    with pytest.raises(ServingError, match="ask it at /invocations"):
        ask("fill-mask", tensor("text_input", "a"))


class Server:
    """A server with one model."""

    def __init__(self, task: str) -> None:
        self.model = ModelStatus(model(), True, False, 1, 0.0, 0, 0, task=task)
        self.models = [self.model]

    def select(self, name: str, version: str, unversioned: str) -> ModelStatus:
        return self.model


@pytest.mark.parametrize(
    ("task", "names", "outputs"),
    [
        ("", ["text_input"], [("text_output", "BYTES", [-1])]),
        ("feature-extraction", ["text_input"], [("embedding", "FP32", [-1, -1])]),
        ("text-ranking", ["text_input", "text_pair"], [("scores", "FP32", [-1])]),
        (
            "text-classification",
            ["text_input", "text_pair"],
            [("scores", "FP32", [-1, -1]), ("labels", "BYTES", [-1, -1])],
        ),
        ("fill-mask", ["text_input"], []),
    ],
)
def test_metadata(task: str, names: list[str], outputs: list[Any]) -> None:
    server: Any = Server(task)
    metadata = json.loads(PAGES["metadata"](server, {"model": "served"}, b"").body)  # type: ignore[union-attr]
    assert [one["name"] for one in metadata["inputs"]] == names
    assert [(one["name"], one["datatype"], one["shape"]) for one in metadata["outputs"]] == outputs
    config = json.loads(PAGES["config"](server, {"model": "served"}, b"").body)  # type: ignore[union-attr]
    assert [one["name"] for one in config["input"]][: len(names)] == names
    assert (len(config["input"]) > len(names)) == (task == "")
    assert [one["data_type"] for one in config["output"]] == [
        "TYPE_FP32" if kind == "FP32" else "TYPE_STRING" for _, kind, _ in outputs
    ]
