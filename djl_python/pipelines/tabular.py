"""Predictions of models of tables: what the handlers for scikit-learn and XGBoost have in common.

Runs in the worker, in the thread for the user's code. A model.py beside the model may replace each step, with LMI's
decorators or, if it has none of them, with the functions of SageMaker's script mode. Source: LMI's pages about these
handlers.
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final

from ..compat.encode_decode import decode
from ..compat.output_formatter import find_decorated
from ..compat.utils import find_model_file
from ..core.errors import ModelLoadError, PayloadError
from ..formats.http_rules import preferred
from ..formats.json_framing import JSON
from ..inputs import Input
from ..outputs import Output
from ..usercode.batch_keys import batch_key
from ..usercode.module import DEFAULT_FILE, load_user_module

CSV: Final = "text/csv"
#: Steps, each with its decorator and its function in SageMaker's script mode.
_STEPS: Final = (
    ("load", "init_handler", "model_fn"),
    ("read", "input_formatter", "input_fn"),
    ("predict", "prediction_handler", "predict_fn"),
    ("write", "output_formatter", "output_fn"),
)


class TabularHandler(abc.ABC):
    """A model of tables.

    Settings: `option.model_format`; `option.trust_insecure_model_files=true` for formats whose files can run code.

    Attributes:
        formats: format -> suffixes of its files.
        safe_formats: those whose files can't run code; the first is the default.
        needs: the module that all of them need, and its package.
        initialized: whether `initialize` was called.
        model: what it loaded.
    """

    formats: ClassVar[Mapping[str, tuple[str, ...]]]
    safe_formats: ClassVar[tuple[str, ...]]
    needs: ClassVar[tuple[str, str]]

    def __init__(self) -> None:
        self.initialized = False
        self.model: Any = None
        self._steps: dict[str, Callable[..., Any]] = {}
        self._is_script = False
        self._default_accept = JSON

    @abc.abstractmethod
    def load_file(self, path: str, model_format: str, properties: Mapping[str, str]) -> Any:
        """The model of a file.

        Raises:
            ImportError: a library is missing; says how to install it.
        """

    @abc.abstractmethod
    def predict(self, rows: Any) -> Any:
        """The predictions for an array of rows."""

    def handle(self, inputs: Input) -> Output | None:
        """Load the model with the first call, and answer every other one."""
        if not self.initialized:
            self.initialize(inputs.get_properties())
        return None if inputs.is_empty() else self.inference(inputs)

    def initialize(self, properties: Mapping[str, str]) -> None:
        """Load the model, by the user's own function if there is one.

        Raises:
            ModelLoadError: the directory has no model file, or one of an unknown format, or one that is not trusted.
        """
        model_dir = properties.get("model_dir") or "."
        self._default_accept = properties.get("default_accept") or JSON
        if Path(model_dir, DEFAULT_FILE).is_file():
            self._steps, self._is_script = _steps_of(load_user_module(model_dir))
        loaded = self._steps["load"](model_dir) if "load" in self._steps else None
        self.model = self._load(model_dir, properties) if loaded is None else loaded
        self.initialized = True

    def inference(self, inputs: Input) -> Output:
        """The predictions for a call, or for each call of a dynamic batch.

        Raises:
            PayloadError: the body holds no rows, or the client accepts neither JSON nor CSV.
        """
        if not inputs.is_batch():
            return self._answer(inputs)
        outputs = Output()
        for index, call in enumerate(inputs.get_batches()):
            try:
                answer = self._answer(call)
            except PayloadError as exc:
                outputs.error(exc.message, batch_index=index)
                continue
            outputs.add(b"".join(answer.content.get_values()), batch_index=index)
            if (kind := answer.properties.get("Content-Type", answer.content_type)) is not None:
                outputs.add_property(batch_key("content-type", index), kind)
        return outputs

    @classmethod
    def check(cls, properties: Mapping[str, str]) -> None:
        """Refuse what `initialize` would refuse of a directory without a model.py, which may load the model by itself.

        Raises:
            ModelLoadError: as there, or the model's library is not installed.
        """
        model_dir = properties.get("model_dir") or "."
        if Path(model_dir, DEFAULT_FILE).is_file():
            return
        cls._file(model_dir, properties)
        name, package = cls.needs
        if importlib.util.find_spec(name) is None:
            raise ModelLoadError(_missing(package))

    def _load(self, model_dir: str, properties: Mapping[str, str]) -> Any:
        path, model_format = self._file(model_dir, properties)
        return self.load_file(path, model_format, properties)

    @classmethod
    def _file(cls, model_dir: str, properties: Mapping[str, str]) -> tuple[str, str]:
        """The model's file and its format.

        Raises:
            ModelLoadError: see `initialize`.
        """
        model_format = properties.get("model_format") or cls.safe_formats[0]
        if model_format not in cls.formats:
            raise ModelLoadError(f"option.model_format={model_format}: expected one of {', '.join(cls.formats)}")
        trusted = str(properties.get("trust_insecure_model_files", "")).strip().lower() == "true"
        if model_format not in cls.safe_formats and not trusted:
            raise ModelLoadError(
                f"option.model_format={model_format}: loading such a file may run whatever code is in it; "
                "if you trust it, set option.trust_insecure_model_files=true"
            )
        try:
            path = find_model_file(model_dir, cls.formats[model_format])
        except ValueError as exc:
            raise ModelLoadError(str(exc)) from None
        if path is None:
            names = " or ".join(f"model.{suffix}" for suffix in cls.formats[model_format])
            raise ModelLoadError(f"option.model_format={model_format}: {model_dir} has no {names}")
        return path, model_format

    def _answer(self, call: Input) -> Output:
        accept = call.get_property("accept") or ""
        accept = accept if accept and "*/*" not in accept else self._default_accept
        kind = preferred(accept, (JSON, CSV))
        if kind is None and "write" not in self._steps:
            raise PayloadError(f"accept: {accept}: expected {JSON} or {CSV}")
        rows = self._rows(call)
        predictions = self._steps["predict"](rows, self.model) if "predict" in self._steps else self._predictions(rows)
        if "write" not in self._steps:
            return _table(predictions, kind)
        if self._is_script:
            return _written(self._steps["write"](predictions, kind or accept), kind or accept)
        return _written(self._steps["write"](predictions), None)

    def _rows(self, call: Input) -> Any:
        content_type = call.get_property("content-type") or ""
        if "read" not in self._steps:
            return _read(call, content_type)
        return self._steps["read"](*((call.get_as_bytes(), content_type) if self._is_script else (call,)))

    def _predictions(self, rows: Any) -> Any:
        if not hasattr(rows, "ndim"):
            raise TypeError(f"the input formatter made a {type(rows).__name__}, expected an array for predict")
        return self.predict(rows.reshape(1, -1) if rows.ndim == 1 else rows)


def _steps_of(module: ModuleType) -> tuple[dict[str, Callable[..., Any]], bool]:
    """The user's functions by step, and whether they are those of SageMaker's script mode."""
    decorated = {step: function for step, decorator, _ in _STEPS if (function := find_decorated(module, decorator))}
    if decorated:
        return decorated, False
    functions = {step: function for step, _, name in _STEPS if callable(function := getattr(module, name, None))}
    return functions, bool(functions)


def _read(call: Input, content_type: str) -> Any:
    """The rows of a body: CSV without a header, or JSON, an array or `{"inputs": array}`, or an array's own format."""
    import numpy as np

    value = decode(call, content_type, require_csv_headers=False)
    if isinstance(value, dict):
        value = value.get("inputs")
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        value = value[0]
    try:
        rows = np.asarray(value)
    except ValueError as exc:  # rows of different lengths
        raise PayloadError(f"inputs: expected rows of equal length: {exc}", "inputs") from exc
    if rows.ndim == 0 or rows.size == 0:
        raise PayloadError('expected rows: [[1.0, 2.0]], {"inputs": [[1.0, 2.0]]}, or CSV', "inputs")
    return rows


def _table(predictions: Any, kind: str | None) -> Output:
    """Predictions as `{"predictions": [...]}`, or as CSV with a line for each."""
    if kind != CSV:
        return Output().add_as_json({"predictions": predictions})
    lines = (",".join(map(str, line)) if isinstance(line, list) else str(line) for line in predictions.tolist())
    return Output().add("\n".join(lines)).add_property("Content-Type", CSV)


def _written(made: Any, content_type: str | None) -> Output:
    """What the user's function made: an Output, bytes, text or what JSON has; SageMaker's may come with its type."""
    if isinstance(made, Output):
        return made
    if isinstance(made, tuple) and len(made) == 2 and content_type is not None:
        made, content_type = made
    output = Output().add(made)
    return output if content_type is None else output.add_property("Content-Type", content_type)


def library(name: str, package: str) -> Any:
    """A library that these handlers need and this project does not.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name != name.partition(".")[0]:
            raise
        raise ImportError(_missing(package)) from exc


def _missing(package: str) -> str:
    return f"the model needs {package}: pip install {package}"
