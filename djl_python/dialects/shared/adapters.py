"""Which of a model's LoRA adapters a request names. Runs in the worker."""

from __future__ import annotations

from ...config import ModelConfig
from ...core.errors import ParameterError
from ...core.names import did_you_mean


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
        raise ParameterError(
            f"{field}: this model has no adapters; option.enable_lora=true with option.rolling_batch=vllm serves them",
            field,
        )
    known = ", ".join(model.adapters)
    raise ParameterError(
        f"{field}: there is no adapter {name}; expected one of {known}{did_you_mean(name, model.adapters)}", field
    )


def adapter_of_model(name: str | None, model: ModelConfig) -> str:
    """The adapter that OpenAI's `model` names; "" for the base model, which any other name stands for."""
    return name if name is not None and name in model.adapters and name != model.name else ""
