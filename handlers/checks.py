"""Checks of the built-in handler before anything is loaded. `djl-serving check` makes them too; imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from djl_python.config import ModelConfig, check_generates_text, has_gpu
from djl_python.config.sources import path_here
from djl_python.core.errors import ModelLoadError
from djl_python.engine.client import check_options
from djl_python.formats.json_framing import FORMATTERS
from djl_python.text.tools.parser import tool_parser_path

TASK: Final = "text-generation"


def check(config: ModelConfig) -> None:
    """Refuse a model that can't be served, as far as its directory and its settings show that.

    Raises:
        ModelLoadError, ConfigError: names the setting and what was expected.
    """
    option, directory = config.option, Path(config.path)
    if option.output_formatter is not None and option.output_formatter not in FORMATTERS:
        raise ModelLoadError(
            f"option.output_formatter={option.output_formatter}: expected {', '.join(sorted(FORMATTERS))}"
        )
    check_options(config)
    if option.tool_call_parser:
        tool_parser_path(option.tool_call_parser)
    if checkpoint := path_here(option.model_id, directory):
        check_generates_text(checkpoint)
    if option.draft_model_id:
        path_here(option.draft_model_id, directory)


def without_effect(config: ModelConfig) -> list[str]:
    """Sentences about settings that have an effect in DJL or other handlers, and none in this one as configured."""
    option, batch_size = config.option, config.serving.batch_size
    remarks = []
    if option.tensor_parallel_degree == "max" and not has_gpu():
        remarks.append("option.tensor_parallel_degree=max has no effect: there is no GPU")
    if option.task not in ("", TASK):
        remarks.append(f"option.task={option.task} has no effect: the built-in handler generates text")
    if option.rolling_batch != "disable":
        if batch_size > 1:
            remarks.append(
                f"batch_size={batch_size} has no effect with continuous batching: "
                "option.max_rolling_batch_size is how many sequences are generated at once"
            )
        if option.enable_streaming:
            remarks.append("option.enable_streaming has no effect without option.rolling_batch=disable")
    return remarks
