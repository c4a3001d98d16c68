"""What the built-in handler refuses before anything is loaded. Also what `djl-serving check` asks; imports no torch."""

from __future__ import annotations

from pathlib import Path

from djl_python.config import ModelConfig
from djl_python.engine.client import check_options
from djl_python.errors import ModelLoadError
from djl_python.output_formatter import FORMATTERS
from djl_python.sources import path_here
from djl_python.text.tools import tool_parser_path


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
    check_options(option)
    if option.tool_call_parser:
        tool_parser_path(option.tool_call_parser)
    path_here(option.model_id, directory)
    if option.draft_model_id:
        path_here(option.draft_model_id, directory)
