"""Checks of text generation before anything is loaded. `djl-serving check` makes them too; imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from djl_python.config import TEXT_GENERATION, ModelConfig, check_is_for
from djl_python.config.sources import path_here, shown_url
from djl_python.core.faults import Faults
from djl_python.core.names import did_you_mean
from djl_python.engine.interface import Engine, engine_of
from djl_python.formats.json_framing import FORMATTERS
from djl_python.text.reasoning import reasoning_parser, reasoning_parser_path
from djl_python.text.tokens.tokenizer_files import TokenizerFiles, check_tokenizer, chosen_template
from djl_python.text.tools.parser import tool_parser_path

#: What names the checkpoint of the model itself.
MODEL: Final = "option.model_id"


def check(config: ModelConfig, *, thorough: bool = False) -> None:
    """Refuse a model that can't be served, as far as its directory and its settings show that.

    Args:
        thorough: read also what loading the model reads a moment later: its tokenizer.

    Raises:
        ModelLoadError: a line for each fault: the setting or the file, and what was expected.
    """
    faults, option = Faults(), config.option
    formatter = option.output_formatter
    if formatter is not None and formatter not in FORMATTERS:
        faults.add(
            [
                f"{config.said('option.output_formatter', formatter)}: expected {', '.join(sorted(FORMATTERS))}"
                f"{did_you_mean(formatter, FORMATTERS)}"
            ]
        )
    if option.chat_template:
        with faults.collected(config.where("option.chat_template")):
            chosen_template(option.chat_template, Path(config.path))
    if option.tool_call_parser:
        with faults.collected(config.where("option.tool_call_parser")):
            tool_parser_path(option.tool_call_parser)
    if option.reasoning_parser:
        with faults.collected(config.where("option.reasoning_parser")):
            reasoning_parser_path(option.reasoning_parser)
    with faults.collected(config.where("option.rolling_batch")):
        engine = engine_of(option.rolling_batch)
        faults.add(_engine_faults(config, engine, thorough))
    faults.refuse()


def _engine_faults(config: ModelConfig, engine: Engine[Any], thorough: bool) -> Faults:
    faults = Faults()
    with faults.collected():
        engine.check_model(config)
    for key, model_id in checkpoints(config, engine).items():
        with faults.collected():
            path = path_here(model_id, Path(config.path), config.said(key, shown_url(model_id)))
            if path is not None:
                check_files(config, engine, key, path)
                if thorough and key == MODEL:
                    TokenizerFiles.read(path).backend()
    return faults


def checkpoints(config: ModelConfig, engine: Engine[Any]) -> dict[str, str]:
    """What names the checkpoints that the model needs, by option: its own first, and those of the engine."""
    return {MODEL: config.option.model_id, **engine.checkpoints(engine.options_of(config))}


def check_files(config: ModelConfig, engine: Engine[Any], key: str, path: Path) -> None:
    """Refuse a local checkpoint, which `key` names of `checkpoints`, for what its files are or lack.

    Raises:
        ModelLoadError: a line for each fault.
    """
    faults = Faults()
    if key == MODEL:
        check_is_for(TEXT_GENERATION, path)
        with faults.collected():
            check_tokenizer(path)
        if config.option.enable_reasoning and not config.option.reasoning_parser:  # the chat template has to tell it
            with faults.collected(config.where("option.enable_reasoning")):
                reasoning_parser(True, "", _templates(config, path).values())
    with faults.collected():
        engine.check_checkpoint(config, engine.options_of(config), key, path)
    faults.refuse()


def _templates(config: ModelConfig, path: Path) -> dict[str, str]:
    if config.option.chat_template:
        return chosen_template(config.option.chat_template, Path(config.path))
    return TokenizerFiles.read(path).chat_templates


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
