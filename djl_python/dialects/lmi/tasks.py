"""LMI's requests to models that read text without generating any: those of transformers' pipelines.

Runs in the worker. The model's task determines the body and the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...config import ModelConfig
from ...inputs import Input
from ..shared.base import ParsedTask, TaskParser
from ..shared.text_tasks.pipelines import PIPELINES, PipelineParser
from .body import fields_of

PREDICT: Final = "predict"


def _parser(parse: PipelineParser) -> TaskParser:
    def parser(inputs: Input, model: ModelConfig) -> ParsedTask[Any, Any]:
        return parse(fields_of(inputs, model.option.max_request_values), model, False)

    return parser


TASK_PARSERS: Final[Mapping[tuple[str, str], TaskParser]] = {
    (task, PREDICT): _parser(parse) for task, parse in PIPELINES.items()
}
