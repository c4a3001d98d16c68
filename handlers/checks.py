"""Checks of text generation before anything is loaded. `djl-serving check` makes them too; imports no torch."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

from djl_python.config import (
    TEXT2TEXT_GENERATION,
    TEXT_GENERATION,
    ModelConfig,
    check_is_for,
    read_json_object,
    task_of_checkpoint,
)
from djl_python.config.sources import shown_url
from djl_python.core.errors import ConfigError
from djl_python.core.faults import Faults
from djl_python.core.names import choices
from djl_python.engine.row import Engine, engine_of
from djl_python.formats.json_framing import FORMATTERS
from djl_python.gguf import described_by
from djl_python.sources import path_here
from djl_python.text.reasoning import reasoning_parser, reasoning_parser_path
from djl_python.text.tokens.tokenizer_files import TokenizerFiles, check_tokenizer, chosen_template
from djl_python.text.tools.parser import tool_parser_path
from djl_python.usercode.imports import may_bring_more

from .images.needs import image_fault

#: The option that names the model's own checkpoint.
MODEL: Final = "option.model_id"


def check(config: ModelConfig, *, thorough: bool = False) -> None:
    """Refuse a model whose directory or settings show that it can't be served.

    Args:
        thorough: also read the tokenizer, which loading would read anyway.

    Raises:
        ModelLoadError: a line for each fault: the setting or the file, and what was expected.
    """
    faults, option = Faults(), config.option
    formatter = option.output_formatter
    if formatter is not None and formatter not in FORMATTERS:
        faults.add(
            [f"{config.cite('option.output_formatter', formatter)}: expected {choices(formatter, sorted(FORMATTERS))}"]
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
            path = path_here(model_id, Path(config.path), config.cite(key, shown_url(model_id)))
            if path is not None:
                check_files(config, engine, key, path)
                if thorough and key == MODEL:
                    TokenizerFiles.read(path).backend()
    return faults


def checkpoints(config: ModelConfig, engine: Engine[Any]) -> dict[str, str]:
    """The checkpoints that the model needs, by option: its own first, then the engine's."""
    return {MODEL: config.option.model_id, **engine.checkpoints(engine.options_of(config))}


def check_files(config: ModelConfig, engine: Engine[Any], key: str, path: Path) -> None:
    """Refuse a local checkpoint with missing or unsuitable files; `key` is its option.

    Raises:
        ModelLoadError: a line for each fault.
    """
    faults = Faults()
    if engine.requires and (gguf := described_by(path)) is not None:
        rolling_batch = config.cite("option.rolling_batch", config.option.rolling_batch)
        faults.add([f"{rolling_batch}: {gguf} is a GGUF file, which the built-in engine alone serves; expected auto"])
        faults.refuse()
    if key == MODEL:
        if not engine.runs_encoder_decoders or task_of_checkpoint(path) != TEXT2TEXT_GENERATION:
            check_is_for(TEXT_GENERATION, path)
        with faults.collected():
            check_tokenizer(path)
        if config.option.enable_reasoning and not config.option.reasoning_parser:  # the chat template has to name it
            with faults.collected(config.where("option.enable_reasoning")):
                reasoning_parser(True, "", _templates(config, path).values())
        if not engine.prepares_images and not _may_bring_packages(config) and (fault := image_fault(path)):
            faults.add([fault])
    with faults.collected():
        engine.check_checkpoint(config, engine.options_of(config), key, path)
    faults.refuse()


def _may_bring_packages(config: ModelConfig) -> bool:
    """Whether the worker may have packages that this process lacks: its interpreter's, or those in requirements.txt."""
    option, directory = config.option, Path(config.path) if config.path else None
    return bool(option.python_executable) or "PYTHON" in option.env or may_bring_more(directory)


def _templates(config: ModelConfig, path: Path) -> dict[str, str]:
    if config.option.chat_template:
        return chosen_template(config.option.chat_template, Path(config.path))
    return TokenizerFiles.read(path).chat_templates


def without_effect(config: ModelConfig, checkpoint: Path | None = None) -> list[str]:
    """Sentences about settings that have an effect in DJL or in other handlers, and none in this one as configured.

    Args:
        checkpoint: the checkpoint's directory; None: find it, if it is on this machine.
    """
    option, batch_size = config.option, config.serving.batch_size
    engine, path = engine_of(option.rolling_batch), checkpoint or _checkpoint_here(config)
    options = engine.options_of(config)
    remarks = list(engine.without_effect(config, options))
    if path is not None:
        remarks += engine.without_effect_on(config, options, path)
    if option.rolling_batch != "disable":
        if batch_size > 1:
            remarks.append(
                f"{config.cite('batch_size', batch_size)} has no effect with continuous batching: "
                "option.max_rolling_batch_size limits the sequences of a batch"
            )
        if option.enable_streaming:
            remarks.append(
                f"{config.where('option.enable_streaming')}option.enable_streaming has no effect: each request says "
                "whether its answer is streamed"
            )
    if not option.allow_remote_images and path is not None and _takes_images(path):
        remarks.append("images are taken from data: URLs only; option.allow_remote_images=true allows http(s) URLs")
    return remarks


def _checkpoint_here(config: ModelConfig) -> Path | None:
    """The checkpoint's directory; None: it has to be fetched first, or does not exist, which `check` reports."""
    with contextlib.suppress(ConfigError):
        return path_here(config.option.model_id, Path(config.path))
    return None


def _takes_images(path: Path) -> bool:
    file = path / "config.json"
    return file.is_file() and "vision_config" in read_json_object(file)
