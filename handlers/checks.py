"""Checks of text generation before anything is loaded. `djl-serving check` makes them too; imports no torch."""

from __future__ import annotations

from pathlib import Path

from djl_python.config import TEXT_GENERATION, ModelConfig, check_is_for
from djl_python.config.sources import path_here
from djl_python.core.errors import ModelLoadError
from djl_python.engine.interface import engine_of
from djl_python.formats.json_framing import FORMATTERS
from djl_python.text.tools.parser import tool_parser_path


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
    engine = engine_of(option.rolling_batch)
    engine.check_model(config)
    if option.tool_call_parser:
        tool_parser_path(option.tool_call_parser)
    if checkpoint := path_here(option.model_id, directory):
        check_is_for(TEXT_GENERATION, checkpoint)
    for model_id in engine.checkpoints(engine.options_of(config)).values():
        path_here(model_id, directory)


def without_effect(config: ModelConfig) -> list[str]:
    """Sentences about settings that have an effect in DJL or other handlers, and none in this one as configured."""
    option, batch_size = config.option, config.serving.batch_size
    engine = engine_of(option.rolling_batch)
    remarks = engine.without_effect(config, engine.options_of(config))
    if option.rolling_batch != "disable":
        if batch_size > 1:
            remarks.append(
                f"batch_size={batch_size} has no effect with continuous batching: "
                "option.max_rolling_batch_size is how many sequences are generated at once"
            )
        if option.enable_streaming:
            remarks.append("option.enable_streaming has no effect without option.rolling_batch=disable")
    return remarks
