"""Triton's pages: health, metadata, configuration, statistics, and the model repository.

Runs in the front end. The repository has the models that are or were registered: one can be unloaded, and loaded again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import inspect
from msgspec.structs import asdict

from ... import __version__
from ...core import budgets
from ...core.engine_info import EngineInfo
from ...core.errors import PayloadError
from ...core.text_tasks import TEXT_TASKS
from ...formats.json_framing import encode_json
from ..shared.base import Answer
from ..shared.typed_body import read_body
from ..shared.views import ModelStatus, ServerView
from .generate import json_object, version_of
from .text_tasks import INPUTS, OPTIONAL, OUTPUTS
from .types import (
    DEFAULT_VERSION,
    TEXT_INPUT,
    TEXT_OUTPUT,
    Duration,
    IndexEntry,
    IndexRequest,
    InferenceStatistics,
    InstanceGroup,
    LoadRequest,
    ModelConfiguration,
    ModelMetadata,
    ModelParameter,
    ModelStatistics,
    ServerMetadata,
    Statistics,
    TensorConfig,
    TensorMetadata,
    TritonParameters,
    UnloadRequest,
)

_EXTENSIONS: Final = (
    "generate",
    "model_repository",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
)
_BACKEND: Final = "djl_python"
_UNAVAILABLE: Final = 503
#: A parameter's type -> the data type of its tensor in a model's configuration.
_DATA_TYPES: Final[dict[type, str]] = {
    inspect.BoolType: "TYPE_BOOL",
    inspect.IntType: "TYPE_INT64",
    inspect.FloatType: "TYPE_FP32",
    inspect.StrType: "TYPE_STRING",
}

#: The tensors of models that generate text.
_TEXT_INPUTS: Final = (TensorMetadata(TEXT_INPUT, "BYTES", [-1]),)
_TEXT_OUTPUTS: Final = (TensorMetadata(TEXT_OUTPUT, "BYTES", [-1]),)

Page = Callable[[ServerView, Mapping[str, str], bytes], Answer | Awaitable[Answer]]


def _server(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    return _json(ServerMetadata("djl-serving", __version__, list(_EXTENSIONS)))


def _live(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    return _empty(_UNAVAILABLE if server.lost else 200)


def _ready(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    return _empty(200 if server.ready else _UNAVAILABLE)


def _model_ready(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    return _empty(200 if _selected(server, values).available else _UNAVAILABLE)


def _metadata(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    model = _selected(server, values)
    versions = [version_of(other.config) for other in server.models if other.config.name == model.config.name]
    return _json(
        ModelMetadata(
            model.config.name,
            versions,
            _BACKEND,
            list(_inputs(model)),
            list(_outputs(model)),
        )
    )


def _config(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    model = _selected(server, values)
    return _json(
        ModelConfiguration(
            name=model.config.name,
            platform=_BACKEND,
            backend=_BACKEND,
            max_batch_size=0,  # in Triton's sense: shapes have no batch dimension
            input=[
                *(
                    _configured(tensor, optional=tensor.name in OPTIONAL.get(model.task, ()))
                    for tensor in _inputs(model)
                ),
                *([] if model.task in TEXT_TASKS else _parameter_tensors()),
            ],
            output=[_configured(tensor) for tensor in _outputs(model)],
            instance_group=[InstanceGroup(name=model.config.name, kind="KIND_AUTO", count=model.workers)],
            model_transaction_policy={"decoupled": False},
            parameters=_engine_parameters(model.engine),
        )
    )


def _stats(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    return _json(Statistics([_statistics(_selected(server, values))]))


def _all_stats(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    return _json(Statistics([_statistics(model) for model in server.models]))


def _index(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    request = read_body(json_object(body, budgets.PAGE_VALUES.most) if body.strip() else {}, IndexRequest)
    entries = [_entry(model) for model in server.models]
    entries += [IndexEntry(m.config.name, version_of(m.config), "UNAVAILABLE", "unloaded") for m in server.unloaded]
    return _json([entry for entry in entries if entry.state == "READY" or not request.ready])


async def _load(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    request = read_body(json_object(body, budgets.PAGE_VALUES.most) if body.strip() else {}, LoadRequest)
    for name in request.parameters or {}:
        field = f"parameters.{name}"
        raise PayloadError(f"{field}: a model is loaded with the files and settings that it was found with", field)
    await server.load(values["model"])
    return _empty(200)


async def _unload(server: ServerView, values: Mapping[str, str], body: bytes) -> Answer:
    read_body(json_object(body, budgets.PAGE_VALUES.most) if body.strip() else {}, UnloadRequest)
    await server.unload(values["model"])
    return _empty(200)


#: Operation -> the function that answers it.
PAGES: Final[Mapping[str, Page]] = {
    "server": _server,
    "live": _live,
    "ready": _ready,
    "model_ready": _model_ready,
    "metadata": _metadata,
    "config": _config,
    "stats": _stats,
    "all_stats": _all_stats,
    "index": _index,
    "load": _load,
    "unload": _unload,
}


def _selected(server: ServerView, values: Mapping[str, str]) -> ModelStatus:
    return server.select(values["model"], values.get("version", ""), DEFAULT_VERSION)


def _statistics(model: ModelStatus) -> ModelStatistics:
    tally = model.tally
    return ModelStatistics(
        name=model.config.name,
        version=version_of(model.config),
        last_inference=int(tally.last_s * 1e3),
        inference_count=tally.succeeded,
        execution_count=tally.succeeded,
        inference_stats=InferenceStatistics(
            Duration(tally.succeeded, int(tally.succeeded_s * 1e9)), Duration(tally.failed, int(tally.failed_s * 1e9))
        ),
    )


def _entry(model: ModelStatus) -> IndexEntry:
    name, version = model.config.name, version_of(model.config)
    if model.ready:
        return IndexEntry(name, version, "READY", "")
    if model.failed:
        return IndexEntry(name, version, "UNAVAILABLE", "it failed to load")
    if model.unloaded:
        return IndexEntry(name, version, "UNAVAILABLE", "unloaded until a request names it")
    return IndexEntry(name, version, "LOADING", "")


def _engine_parameters(engine: EngineInfo | None) -> dict[str, ModelParameter]:
    """The engine of the model, as far as it is known."""
    known = {} if engine is None else asdict(engine)
    return {name: ModelParameter(str(value)) for name, value in known.items()}


def _inputs(model: ModelStatus) -> Sequence[TensorMetadata]:
    return INPUTS.get(model.task, _TEXT_INPUTS)


def _outputs(model: ModelStatus) -> Sequence[TensorMetadata]:
    """The outputs; empty for a model whose task has no tensors."""
    return OUTPUTS.get(model.task, () if model.task in TEXT_TASKS else _TEXT_OUTPUTS)


def _configured(tensor: TensorMetadata, *, optional: bool = False) -> TensorConfig:
    data_type = "TYPE_STRING" if tensor.datatype == "BYTES" else f"TYPE_{tensor.datatype}"
    return TensorConfig(name=tensor.name, data_type=data_type, dims=tensor.shape, optional=optional)


def _parameter_tensors() -> list[TensorConfig]:
    """Each parameter as an optional tensor."""
    info = inspect.type_info(TritonParameters)
    assert isinstance(info, inspect.StructType)
    return [
        TensorConfig(name=field.name, data_type=_DATA_TYPES[kind], dims=[-1], optional=True)
        for field in info.fields
        if (kind := _kind(field.type)) is not None
    ]


def _kind(kind: inspect.Type) -> type | None:
    """The first of a type's alternatives that a tensor can hold; None: none of them."""
    if isinstance(kind, inspect.Metadata):
        return _kind(kind.type)
    if isinstance(kind, inspect.UnionType):
        return next((member_kind for member in kind.types if (member_kind := _kind(member)) is not None), None)
    return type(kind) if type(kind) in _DATA_TYPES else None


def _json(value: Any) -> Answer:
    return Answer(200, encode_json(value))


def _empty(status: int) -> Answer:
    return Answer(status, b"", {})
