"""Finds the LoRA adapter that a request names. Runs in the worker."""

from __future__ import annotations

from ...config import ModelConfig
from ...core.errors import ParameterError, PayloadError
from ...core.names import did_you_mean
from ...inputs import Input
from .request_body import read_json


def adapter_named(name: object, model: ModelConfig, field: str) -> str:
    """The adapter, "" for the base model: it is named by "", null, or not at all.

    Args:
        field: the path of the request's field that names it, for errors.

    Raises:
        ParameterError: the model has no such adapter; the base model's answer would pass for the adapter's.
    """
    if name is None or name == "":
        return ""
    if not isinstance(name, str):
        raise ParameterError(f"{field}: expected the name of an adapter", field)
    if name in model.adapters:
        return name
    if not model.adapters:
        raise ParameterError(f"{field}: this model has no adapters; {_remedy(model)}", field)
    known = ", ".join(model.adapters)
    raise ParameterError(
        f"{field}: there is no adapter {name}; expected one of {known}{did_you_mean(name, model.adapters)}", field
    )


def _remedy(model: ModelConfig) -> str:
    """What would give a model adapters, or why it has none."""
    if model.engine_options.get("enable_lora"):
        return "none has been registered"
    if model.properties.get("enable_lora", "").lower() == "true":
        return f"its engine, option.rolling_batch={model.option.rolling_batch}, serves none (auto and vllm do)"
    return "option.enable_lora=true serves them"


def adapter_of_model(name: str | None, model: ModelConfig) -> str:
    """The adapter that OpenAI's `model` names; "" for the base model, which any other name stands for."""
    return name if name is not None and name in model.adapters and name != model.name else ""


def field_before_parsing(inputs: Input, model: ModelConfig, *path: str) -> object:
    """A field of a body that an @input_formatter may still change; None where it has none.

    Raises:
        TooLargeError: the body has more values than option.max_request_values.
    """
    try:
        value = read_json(inputs, model.option.max_request_values)
    except PayloadError:  # the formatter may read other bodies than JSON; what it makes of them is parsed
        return None
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
