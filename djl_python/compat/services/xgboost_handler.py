"""DJL's handler for XGBoost: `option.entryPoint=djl_python.xgboost_handler`.

Runs in the worker. Source: LMI's "XGBoost Handler".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ...inputs import Input
from ...outputs import Output
from ...pipelines.tabular import TabularHandler, library


class XGBoostHandler(TabularHandler):
    """A booster, from a file of its own formats, or a pickled one."""

    formats: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "json": ("json",),
        "ubj": ("ubj",),
        "pickle": ("pkl", "pickle"),
        "xgb": ("xgb", "model", "bst"),
    }
    safe_formats: ClassVar[tuple[str, ...]] = ("json", "ubj")
    needs: ClassVar[tuple[str, str]] = ("xgboost", "xgboost")

    def load_file(self, path: str, model_format: str, properties: Mapping[str, str]) -> Any:
        xgboost = library(*self.needs)
        if model_format == "pickle":
            with Path(path).open("rb") as file:
                return library("pickle", "pickle").load(file)
        booster = xgboost.Booster()
        booster.load_model(path)
        return booster

    def predict(self, rows: Any) -> Any:
        xgboost = library(*self.needs)
        # A pickle may hold a model of XGBoost's interface for scikit-learn, which takes rows as they are.
        return self.model.predict(xgboost.DMatrix(rows) if isinstance(self.model, xgboost.Booster) else rows)


service = XGBoostHandler()
check = XGBoostHandler.check


def handle(inputs: Input) -> Output | None:
    """The handler."""
    return service.handle(inputs)
