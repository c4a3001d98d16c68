"""Triton's bodies: the types that the dialect reads and writes, and that /openapi.json shows.

Sources: Triton's generate extension (`generate`, `generate_stream`), the KServe v2 protocol with Triton's statistics,
model configuration and model repository extensions.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...core import budgets
from ...core.turns.precedence import MAX_PRIORITY

DEFAULT_MAX_TOKENS: Final = 30
#: The version shown for a model without one.
DEFAULT_VERSION: Final = "1"
TEXT_INPUT: Final = "text_input"
TEXT_OUTPUT: Final = "text_output"

Scalar = str | int | float | bool
_Text = Annotated[str, Meta(min_length=1, description="The prompt.")]
_OneText = Annotated[list[_Text], Meta(min_length=1, max_length=1, description="The prompt, as a tensor of shape [1].")]
_MaxTokens = Annotated[int, Meta(ge=1, description=f"Tokens to generate at most; {DEFAULT_MAX_TOKENS} if absent.")]
_MinTokens = Annotated[int, Meta(ge=0, description="Tokens to generate at least.")]
_Seed = Annotated[int, Meta(description="A 64-bit integer; drawn if absent.")]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Stop = Annotated[str | list[str], Meta(description="Generation ends before this text, or one of these.")]


class TritonParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Generation parameters, under the names of Triton's vLLM and TensorRT-LLM backends; some have two names."""

    max_tokens: _MaxTokens | None = None
    max_new_tokens: _MaxTokens | None = None
    min_tokens: _MinTokens | None = None
    min_length: _MinTokens | None = None
    ignore_eos: bool | None = None
    stop: _Stop | None = None
    stop_words: _Stop | None = None
    bad_words: Annotated[str | list[str], Meta(description="Texts that are not generated.")] | None = None
    do_sample: Annotated[bool, Meta(description="If absent, any of the next four parameters draws.")] | None = None
    temperature: Annotated[float, Meta(ge=0, description="0 takes the likeliest token.")] | None = None
    top_k: Annotated[int, Meta(ge=-1, description="Draw from the k likeliest tokens; -1 and 0: from all.")] | None = (
        None
    )
    top_p: (
        Annotated[float, Meta(gt=0, le=1, description="Draw from the likeliest tokens that have this share.")] | None
    ) = None
    min_p: (
        Annotated[float, Meta(ge=0, le=1, description="Draw from tokens this likely, relative to the likeliest.")]
        | None
    ) = None
    seed: _Seed | None = None
    random_seed: _Seed | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Lower goes first.")] | None = None
    truncate: Annotated[int, Meta(ge=1, description="Keep this many tokens of the prompt's end.")] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    exclude_input_in_output: Annotated[bool, Meta(description="false: text_output begins with the prompt.")] | None = (
        None
    )
    stream: Annotated[bool, Meta(description="generate_stream: false gives everything in one event.")] | None = None


class TritonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and its generation parameters. Further properties are parameters too; `parameters` overrides them."""

    text_input: _Text | _OneText
    id: Annotated[str, Meta(description="Comes back in the answer, unless it is empty.")] | None = None
    parameters: TritonParameters | None = None


class TritonResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The text, or the next piece of it."""

    model_name: str
    model_version: str
    text_output: str
    id: str | UnsetType = UNSET


class TritonError(msgspec.Struct, frozen=True):
    """What went wrong."""

    error: Annotated[str, Meta(description="What went wrong, for people.")]


# ------------------------------------------------------------------------------------------------ infer

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]
Shape = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=budgets.TENSOR_DIMENSIONS.most)]


#: The required tensor.
_TEXT_TENSOR: Final = {"properties": {"name": {"const": TEXT_INPUT}, "datatype": {"const": "BYTES"}}}


class InputTensor(msgspec.Struct, frozen=True, kw_only=True):
    """`text_input` (BYTES), or a parameter under its name; `text_pair` (BYTES) of models that compare or classify."""

    name: str
    shape: Shape
    datatype: Datatype
    parameters: dict[str, Scalar] | None = None
    data: Annotated[
        list[Any] | None, Meta(description="Row by row, nested or flat; absent where it follows the JSON as binary.")
    ] = None


class RequestedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """`text_output`, or what else the model has, as JSON or, with the parameter binary_data, as binary."""

    name: str
    parameters: dict[str, Scalar] | None = None


class InferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts as a tensor."""

    inputs: Annotated[
        list[InputTensor],
        Meta(min_length=1, max_length=budgets.TENSORS.most, extra_json_schema={"contains": _TEXT_TENSOR}),
    ]
    id: str | None = None
    parameters: Annotated[dict[str, Scalar], Meta(description="See TritonParameters.")] | None = None
    outputs: Annotated[list[RequestedOutput], Meta(max_length=budgets.TENSORS.most)] | None = None


class OutputTensor(msgspec.Struct, frozen=True, kw_only=True):
    """The texts, in the shape of `text_input`; or the results of a model that generates none, row by row."""

    name: str
    datatype: Datatype
    shape: Shape
    parameters: dict[str, Scalar] | UnsetType = UNSET
    data: list[str | float] | UnsetType = UNSET


class InferResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Texts, vectors, scores or labels as tensors."""

    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str | UnsetType = UNSET


# ------------------------------------------------------------------------------------------------ pages


class ServerMetadata(msgspec.Struct, frozen=True):
    """The server and the protocol extensions it has."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(msgspec.Struct, frozen=True):
    """A tensor; -1 in its shape stands for any length."""

    name: str
    datatype: Datatype
    shape: list[int]


class ModelMetadata(msgspec.Struct, frozen=True):
    """A model and its tensors."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class TensorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor in a model's configuration."""

    name: str
    data_type: str
    dims: list[int]
    optional: bool = False


class InstanceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of a model."""

    name: str
    kind: str
    count: int


class ModelParameter(msgspec.Struct, frozen=True):
    """The value of one of a model's own settings."""

    string_value: str


class ModelConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A model's configuration in Triton's terms."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: list[TensorConfig]
    output: list[TensorConfig]
    instance_group: list[InstanceGroup]
    model_transaction_policy: dict[str, bool]
    parameters: dict[str, ModelParameter]


class Duration(msgspec.Struct, frozen=True):
    """A number of requests, and their total time."""

    count: int
    ns: int


class InferenceStatistics(msgspec.Struct, frozen=True):
    """Requests by outcome."""

    success: Duration
    fail: Duration


class ModelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one version of a model, over all dialects. `last_inference` is in milliseconds of Unix time."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStatistics


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of the requested models."""

    model_stats: list[ModelStatistics]


class IndexRequest(msgspec.Struct, frozen=True):
    """`ready`: list only the models that can answer now."""

    ready: bool = False


class IndexEntry(msgspec.Struct, frozen=True):
    """One version of a model."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE", "LOADING"]
    reason: str


class LoadRequest(msgspec.Struct, frozen=True):
    """Triton's `config` and `file:` parameters are refused: a model is loaded with the files it was found with."""

    parameters: dict[str, Scalar] | None = None


class UnloadRequest(msgspec.Struct, frozen=True):
    """`unload_dependents` has no effect."""

    parameters: dict[str, Scalar] | None = None
