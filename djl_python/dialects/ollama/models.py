"""The pages about models: `tags` lists them, `show` describes one, `ps` lists the loaded ones. Front end."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

import msgspec

from ...config import TEXT_GENERATION
from ...core.model_files.model_card import ModelCard
from ...core.text_tasks import EMBEDDING_TASKS
from ..shared.views import ModelStatus
from .answer import timestamp
from .names import tagged_name

#: The release of Ollama whose API this is: some clients ask for a minimum.
API_VERSION: Final = "0.12.6"
#: Loaded models stay: the time at which Ollama would unload them is far away.
_NEVER: Final = "2318-01-01T00:00:00Z"

#: The names of recommended values, by transformers'.
_PARAMETERS: Final = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repeat_penalty",
}

Capability = Literal["completion", "tools", "insert", "vision", "embedding", "thinking"]


class OllamaDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model's weights; "" where it is not."""

    parent_model: str = ""
    format: str = ""
    family: str
    families: list[str]
    parameter_size: str = ""
    quantization_level: str


class OllamaModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is there. `size`: its memory, or what its files have of weights until it is loaded."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(msgspec.Struct, frozen=True):
    """The models that are there."""

    models: list[OllamaModel]


class LoadedModel(OllamaModel, frozen=True, kw_only=True):
    """A model that is loaded."""

    expires_at: str
    size_vram: int
    context_length: int


class LoadedModels(msgspec.Struct, frozen=True):
    """The models that are loaded."""

    models: list[LoadedModel]


class OllamaShowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which model to show; `name` is the field's older name."""

    model: str = ""
    name: str = ""
    verbose: bool | None = None


class OllamaShown(msgspec.Struct, frozen=True, kw_only=True):
    """A model: what its files say of it, and how it is served."""

    license: str = ""
    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[Capability]
    modified_at: str


class OllamaVersion(msgspec.Struct, frozen=True):
    """The release of Ollama whose API this is."""

    version: str = API_VERSION


def listed(model: ModelStatus, card: ModelCard) -> OllamaModel:
    """A model in /api/tags."""
    return OllamaModel(**_common(model, card))


def loaded(model: ModelStatus, card: ModelCard) -> LoadedModel:
    """A model in /api/ps."""
    engine = model.engine
    on_gpu = engine is not None and not engine.device.startswith("cpu")
    return LoadedModel(
        **_common(model, card),
        expires_at=_NEVER if model.expires_s is None else timestamp(model.expires_s),
        size_vram=engine.weight_bytes if engine is not None and on_gpu else 0,
        context_length=engine.max_model_len if engine is not None else 0,
    )


def shown(model: ModelStatus, card: ModelCard) -> OllamaShown:
    """A model in /api/show. The context that it is served with counts, once it is loaded."""
    info = dict(card.info) or {"general.architecture": _family(model, card)}
    if model.engine is not None and model.engine.max_model_len:
        info[f"{_family(model, card)}.context_length"] = model.engine.max_model_len
    return OllamaShown(
        license=card.license,
        parameters=_parameters(card),
        template=card.template,
        details=_details(model, card),
        model_info=info,
        capabilities=_capabilities(model, card),
        modified_at=timestamp(model.registered_s),
    )


def _capabilities(model: ModelStatus, card: ModelCard) -> list[Capability]:
    if model.task in EMBEDDING_TASKS:
        return ["embedding"]
    if model.task not in ("", TEXT_GENERATION):
        return []
    able: list[Capability] = ["completion"]
    if card.shows_tools:
        able.append("tools")
    if card.infills:
        able.append("insert")
    if model.engine.takes_images if model.engine is not None else card.takes_images:
        able.append("vision")
    option = model.config.option
    if option.reasoning_parser if option.enable_reasoning is None else option.enable_reasoning:
        able.append("thinking")
    return able


def _parameters(card: ModelCard) -> str:
    """The values that the checkpoint recommends, a line each, as in a Modelfile."""
    given = {name: card.generation.get(key) for key, name in _PARAMETERS.items()}
    return "\n".join(f"{name} {value}" for name, value in given.items() if isinstance(value, int | float))


def _common(model: ModelStatus, card: ModelCard) -> dict[str, Any]:
    name = tagged_name(model.config.name)
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(model.registered_s),
        "size": model.memory_bytes or (model.engine.weight_bytes if model.engine is not None else 0) or card.size_bytes,
        "digest": hashlib.sha256(f"{name} {model.registered_s}".encode()).hexdigest(),
        "details": _details(model, card),
    }


def _details(model: ModelStatus, card: ModelCard) -> OllamaDetails:
    engine, level = model.engine, card.quantization
    if engine is not None and card.format != "gguf":  # which says how the file is quantized
        level = engine.dtype if engine.quantize == "none" else engine.quantize
    family = _family(model, card)
    return OllamaDetails(
        format=card.format,
        family=family,
        families=[family],
        parameter_size=_in_words(card.parameters),
        quantization_level=level,
    )


def _family(model: ModelStatus, card: ModelCard) -> str:
    return card.architecture or model.task or TEXT_GENERATION


def _in_words(count: int) -> str:
    """A number of parameters as Ollama writes it: 134.52M, 8B; "" for 0."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= unit:
            return f"{count / unit:.{0 if count % unit == 0 else digits}f}{letter}"
    return str(count or "")
