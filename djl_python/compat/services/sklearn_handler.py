"""DJL's handler for scikit-learn: `option.entryPoint=djl_python.sklearn_handler`.

Runs in the worker. Source: LMI's "Scikit-learn Handler". skops is the format whose files run no code; the types in them
are those that skops trusts, and those of option.skops_trusted_types.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ...core.errors import ModelLoadError
from ...inputs import Input
from ...outputs import Output
from ...pipelines.tabular import TabularHandler, library


class SklearnHandler(TabularHandler):
    """An estimator, from a file of skops, joblib, pickle or cloudpickle."""

    formats: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "skops": ("skops",),
        "joblib": ("joblib", "jl"),
        "pickle": ("pkl", "pickle"),
        "cloudpickle": ("pkl", "pickle", "cloudpkl"),
    }
    safe_formats: ClassVar[tuple[str, ...]] = ("skops",)
    needs: ClassVar[tuple[str, str]] = ("sklearn", "scikit-learn")

    def load_file(self, path: str, model_format: str, properties: Mapping[str, str]) -> Any:
        library(*self.needs)
        if model_format == "skops":
            return self._load_skops(path, properties)
        if model_format == "joblib":
            return library("joblib", "joblib").load(path)
        with Path(path).open("rb") as file:
            return library(model_format, model_format).load(file)

    def predict(self, rows: Any) -> Any:
        return self.model.predict(rows)

    @staticmethod
    def _load_skops(path: str, properties: Mapping[str, str]) -> Any:
        skops = library("skops.io", "skops")
        trusted = [name.strip() for name in properties.get("skops_trusted_types", "").split(",") if name.strip()]
        unknown = sorted({*skops.get_untrusted_types(file=path)} - {*trusted})
        if unknown:
            raise ModelLoadError(
                f"{Path(path).name} has types that nobody trusts yet: if you do, set option.skops_trusted_types="
                f"{','.join([*trusted, *unknown])}"
            )
        return skops.load(path, trusted=trusted)


service = SklearnHandler()
check = SklearnHandler.check


def handle(inputs: Input) -> Output | None:
    """The handler."""
    return service.handle(inputs)
