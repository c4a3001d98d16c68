"""Predictions of models of tables: formats and trust, steps of the user's, both libraries where they are installed."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from djl_python.core.errors import ModelLoadError, PayloadError
from djl_python.inputs import Input
from djl_python.np_util import to_npz
from djl_python.outputs import Output
from djl_python.pipelines.tabular import TabularHandler, library
from djl_python.sklearn_handler import SklearnHandler
from djl_python.test_model import create_concurrent_batch_request
from djl_python.xgboost_handler import XGBoostHandler


class Sums(TabularHandler):
    """A model that is a number in a file."""

    formats: ClassVar[Mapping[str, tuple[str, ...]]] = {"text": ("txt",), "pickle": ("pkl", "pickle")}
    safe_formats: ClassVar[tuple[str, ...]] = ("text",)
    needs: ClassVar[tuple[str, str]] = ("json", "json")

    def load_file(self, path: str, model_format: str, properties: Mapping[str, str]) -> Any:
        return float(Path(path).read_text())

    def predict(self, rows: Any) -> Any:
        return rows.sum(axis=1) * self.model


@pytest.fixture(autouse=True)
def user_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "model.txt").write_text("2")
    return tmp_path


def ask(handler: TabularHandler, body: bytes, content_type: str = "application/json", accept: str = "") -> Output:
    inputs = Input()
    inputs.properties = {"content-type": content_type} | ({"accept": accept} if accept else {})
    inputs.content.add("data", body)
    output = handler.handle(inputs)
    assert output is not None
    return output


def loaded(model_dir: Path, source: str = "", **properties: str) -> Sums:
    if source:
        (model_dir / "model.py").write_text(source)
    handler = Sums()
    handler.initialize({"model_dir": str(model_dir), **properties})
    return handler


def text(output: Output) -> str:
    return b"".join(output.content.values).decode()


def test_rows_in_every_form(model_dir: Path) -> None:
    handler = loaded(model_dir)
    bodies = [b'{"inputs": [[1, 2], [3, 4]]}', b"[[1, 2], [3, 4]]"]
    assert [text(ask(handler, body)) for body in bodies] == ['{"predictions":[6.0,14.0]}'] * 2
    assert text(ask(handler, b"[1, 2]")) == '{"predictions":[6.0]}'
    assert text(ask(handler, b"1,2\n3,4\n", "text/csv", "text/csv")) == "6.0\n14.0"
    assert text(ask(handler, to_npz(np.array([[1.0, 2.0]])), "tensor/npz")) == '{"predictions":[6.0]}'
    assert text(ask(handler, b"[1, 2]", accept="*/*")) == '{"predictions":[6.0]}'
    for body, message in ((b'{"x": 1}', "expected rows"), (b"[[1], [1, 2]]", "equal length")):
        with pytest.raises(PayloadError, match=message):
            ask(handler, body)
    with pytest.raises(PayloadError, match="image/png: expected application/json or text/csv"):
        ask(handler, b"[1]", accept="image/png")


def test_the_calls_of_a_batch(model_dir: Path) -> None:
    batch = create_concurrent_batch_request([{"inputs": [1]}, {"inputs": []}, [[2], [3]]])
    output = loaded(model_dir).inference(batch)
    first, second, third = (json.loads(value) for value in output.content.values)
    assert (first, third) == ({"predictions": [2.0]}, {"predictions": [4.0, 6.0]})
    assert second["code"] == 424
    assert output.properties["batch_000.content-type"] == "application/json"


def test_model_files_are_found_by_their_format(model_dir: Path) -> None:
    refusals = {
        "steam": "option.model_format=steam: expected one of text, pickle",
        "pickle": "may run whatever code is in it; if you trust it, set option.trust_insecure_model_files=true",
    }
    for model_format, message in refusals.items():
        for function in (loaded, lambda path, **given: Sums.check({"model_dir": str(path), **given})):
            with pytest.raises(ModelLoadError, match=message):
                function(model_dir, model_format=model_format)
    with pytest.raises(ModelLoadError, match=r"has no model.pkl or model.pickle"):
        loaded(model_dir, model_format="pickle", trust_insecure_model_files="True")
    (model_dir / "other.txt").write_text("3")
    assert loaded(model_dir).model == 2
    (model_dir / "model.txt").rename(model_dir / "third.txt")
    with pytest.raises(ModelLoadError, match=r"several model files: other.txt, third.txt; call .* model.txt"):
        Sums.check({"model_dir": str(model_dir)})


def test_steps_with_decorators(model_dir: Path) -> None:
    handler = loaded(
        model_dir,
        """
import numpy as np
from djl_python.input_parser import init_handler, input_formatter, prediction_handler
from djl_python.output_formatter import output_formatter

@init_handler
def load(model_dir, **kwargs):
    return 10

@input_formatter
def read(inputs, **kwargs):
    return np.array(inputs.get_as_json()["features"])

@prediction_handler
def predict(X, model, **kwargs):
    return {"predictions": X * model, "shape": X.shape}

@output_formatter
def write(predictions):
    return predictions

def predict_fn(rows, model):
    raise NotImplementedError("decorators come first")
""",
    )
    assert json.loads(text(ask(handler, b'{"features": [1, 2]}'))) == {"predictions": [10, 20], "shape": [2]}


def test_functions_of_script_mode_and_the_rest_by_default(model_dir: Path) -> None:
    handler = loaded(
        model_dir,
        """
def predict_fn(rows, model):
    return rows * model

def output_fn(prediction, accept):
    return str(prediction.tolist()), "text/x-list"
""",
    )
    output = ask(handler, b"[[1, 2]]")
    assert (text(output), output.properties["Content-Type"]) == ("[[2.0, 4.0]]", "text/x-list")


def test_a_library_that_is_missing() -> None:
    with pytest.raises(ImportError, match="the model needs steam-engine: pip install steam-engine"):
        library("steam_engine", "steam-engine")


def write_model(model_dir: Path, model_format: str, model: Any) -> None:
    if model_format == "skops":
        pytest.importorskip("skops.io").dump(model, model_dir / "model.skops")
    elif model_format == "joblib":
        pytest.importorskip("joblib").dump(model, model_dir / "model.joblib")
    else:
        (model_dir / "model.pkl").write_bytes(pickle.dumps(model))


@pytest.mark.parametrize("model_format", ["skops", "joblib", "pickle", "cloudpickle"])
def test_scikit_learn(tmp_path: Path, model_format: str) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    if model_format == "cloudpickle":
        pytest.importorskip("cloudpickle")
    model = linear.LogisticRegression().fit([[0.0], [1.0], [8.0], [9.0]], [0, 0, 1, 1])
    write_model(tmp_path, model_format, model)
    handler = SklearnHandler()
    handler.initialize({"model_dir": str(tmp_path), "model_format": model_format, "trust_insecure_model_files": "true"})
    assert text(ask(handler, b'{"inputs": [[0.5], [8.5]]}')) == '{"predictions":[0,1]}'


@pytest.mark.parametrize("model_format", ["json", "ubj"])
def test_xgboost(tmp_path: Path, model_format: str) -> None:
    xgboost = pytest.importorskip("xgboost")
    rows = np.arange(40.0).reshape(-1, 1)
    model = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(rows, rows[:, 0] > 20), 3)
    model.save_model(tmp_path / f"model.{model_format}")
    handler = XGBoostHandler()
    handler.initialize({"model_dir": str(tmp_path), "model_format": model_format})
    low, high = json.loads(text(ask(handler, b"[[1], [39]]")))["predictions"]
    assert low < 0.5 < high
