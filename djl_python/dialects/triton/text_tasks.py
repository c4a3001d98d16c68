"""KServe v2's infer for embeddings, scores and labels: texts in, FP32 and BYTES tensors out, as JSON or binary.

Runs in the worker; the front end describes the tensors. `text_input` holds one text or several; `text_pair` the second
text of each, or one for all. Request parameters are those of transformers' pipelines.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ...config import ModelConfig
from ...core.errors import PayloadError, ServingError
from ...core.text_tasks import (
    EMBEDDING_TASKS,
    TEXT_CLASSIFICATION,
    TEXT_RANKING,
    Activation,
    Classification,
    ClassifyRequest,
    Embedding,
    EmbedRequest,
    Score,
    ScoreRequest,
    TextInput,
)
from ...formats.json_framing import JSON, encode_json
from ...inputs import Input
from ..shared.base import AnswerFormatter, ParsedTask, TaskParser, parses
from ..shared.request_body import ignored_header, shown
from ..shared.text_tasks.pipeline_types import EmbedParameters, LabelParameters, RankParameters
from ..shared.text_tasks.pipelines import ACTIVATIONS
from ..shared.typed_body import read_body, unknown_fields
from .generate import json_object, scalars, version_of
from .infer import BINARY, prompts_of
from .outputs import wanted_outputs
from .tensors import BINARY_SIZE, JSON_LENGTH, encode_floats, encode_texts, read_tensors, split_body
from .types import TEXT_INPUT, InferRequest, InferResponse, OutputTensor, TensorMetadata, TritonError

TEXT_PAIR: Final = "text_pair"
INFER: Final = "infer"
_ANY: Final = -1
_SCORES: Final = TensorMetadata("scores", "FP32", [_ANY])
#: Task -> its outputs.
OUTPUTS: Final[Mapping[str, tuple[TensorMetadata, ...]]] = {
    **dict.fromkeys(EMBEDDING_TASKS, (TensorMetadata("embedding", "FP32", [_ANY, _ANY]),)),
    TEXT_RANKING: (_SCORES,),
    TEXT_CLASSIFICATION: (
        TensorMetadata("scores", "FP32", [_ANY, _ANY]),
        TensorMetadata("labels", "BYTES", [_ANY, _ANY]),
    ),
}
#: Task -> the inputs that may be left out.
OPTIONAL: Final = {TEXT_CLASSIFICATION: (TEXT_PAIR,)}
#: Task -> its inputs.
INPUTS: Final[Mapping[str, tuple[TensorMetadata, ...]]] = {
    task: tuple(
        TensorMetadata(name, "BYTES", [_ANY])
        for name in (TEXT_INPUT, *([TEXT_PAIR] if task in (TEXT_RANKING, TEXT_CLASSIFICATION) else []))
    )
    for task in OUTPUTS
}
ParametersT = TypeVar("ParametersT", EmbedParameters, LabelParameters, RankParameters)


class _Call:
    """A request: its texts and its options.

    Raises:
        PayloadError, ParameterError: with the field's path.
    """

    def __init__(self, inputs: Input, model: ModelConfig, task: str) -> None:
        head, binary = split_body(inputs.body, inputs.get_property(JSON_LENGTH))
        body = json_object(head, model.option.max_request_values)
        self.parameters = scalars(body.get("parameters"))
        self.request = read_body(body, InferRequest, payload=("inputs", "outputs", "id", "parameters"))
        names = [tensor.name for tensor in INPUTS[task]]
        given = [tensor.name for tensor in self.request.inputs]
        if wrong := next((name for name in given if name not in names), None):
            raise PayloadError(f"inputs: there is no input {shown(wrong)}, expected {' and '.join(names)}", "inputs")
        left_out = (*given, *OPTIONAL.get(task, ()))
        if lacking := next((name for name in names if name not in left_out), None):
            raise PayloadError(f"inputs: expected a tensor {lacking} of datatype BYTES", "inputs")
        tensors = {name: prompts_of(tensor) for name, tensor in read_tensors(self.request.inputs, binary).items()}
        self.texts: tuple[str, ...] = tensors[TEXT_INPUT].values
        pairs: Sequence[str | None] = tensors[TEXT_PAIR].values if TEXT_PAIR in tensors else (None,)
        if len(pairs) not in (1, len(self.texts)):
            expected = f"1 element, or {len(self.texts)}, one for each text"
            raise PayloadError(f"{TEXT_PAIR}: expected {expected}, got {len(pairs)}", TEXT_PAIR)
        self._pairs = [pairs[0]] * len(self.texts) if len(pairs) == 1 else list(pairs)
        self.outputs = wanted_outputs(self.request, self.parameters, [tensor.name for tensor in OUTPUTS[task]])
        self._ignored = unknown_fields(body, InferRequest, model)
        self._model = model

    def read(self, into: type[ParametersT]) -> ParametersT:
        """The request's parameters."""
        self._ignored += unknown_fields(self.parameters, into, self._model)
        return read_body(self.parameters, into)

    def inputs(self, like: TextInput) -> Iterator[TextInput]:
        """The texts, each with its pair."""
        for text, pair in zip(self.texts, self._pairs, strict=True):
            yield msgspec.structs.replace(like, text=text, pair=pair, field=TEXT_INPUT)

    def formatter(self, task: str) -> TensorFormatter:
        """The formatter of the answer."""
        tensors = [tensor for tensor in OUTPUTS[task] if tensor.name in self.outputs]
        formatter = TensorFormatter(self._model, self.request.id, tensors, self.outputs)
        formatter.headers |= ignored_header(self._ignored)
        return formatter


def parse_embedding(inputs: Input, model: ModelConfig) -> ParsedTask[EmbedRequest, Any]:
    """Read texts to embed."""
    call = _Call(inputs, model, EMBEDDING_TASKS[0])
    asked = call.read(EmbedParameters)
    like = msgspec.structs.replace(asked.like(truncates=True), prompt_name=asked.prompt_name)
    requests = tuple(
        EmbedRequest(text=text, dimensions=asked.dimensions, normalize=asked.normalize) for text in call.inputs(like)
    )
    return ParsedTask(requests, call.formatter(EMBEDDING_TASKS[0]))


def parse_ranking(inputs: Input, model: ModelConfig) -> ParsedTask[ScoreRequest, Any]:
    """Read pairs of texts to score."""
    call = _Call(inputs, model, TEXT_RANKING)
    asked = call.read(RankParameters)
    activation = Activation.NONE if asked.raw_scores else Activation.MODEL
    texts = call.inputs(asked.like(truncates=True))
    requests = tuple(ScoreRequest(text=text, activation=activation) for text in texts)
    return ParsedTask(requests, call.formatter(TEXT_RANKING))


def parse_classification(inputs: Input, model: ModelConfig) -> ParsedTask[ClassifyRequest, Any]:
    """Read texts, or pairs of texts, to classify."""
    call = _Call(inputs, model, TEXT_CLASSIFICATION)
    asked = call.read(LabelParameters)
    activation, top = ACTIVATIONS[asked.function_to_apply], asked.top_k or None
    requests = tuple(ClassifyRequest(text=text, activation=activation, top=top) for text in call.inputs(asked.like()))
    return ParsedTask(requests, call.formatter(TEXT_CLASSIFICATION))


PARSERS: Final[Mapping[tuple[str, str], TaskParser]] = {
    **parses(INFER, parse_embedding, *EMBEDDING_TASKS),
    **parses(INFER, parse_ranking, TEXT_RANKING),
    **parses(INFER, parse_classification, TEXT_CLASSIFICATION),
}


def _rows(result: Embedding | Score | Classification) -> dict[str, Sequence[Any]]:
    """A text's row of each output."""
    if isinstance(result, Embedding):
        return {"embedding": result.values.tolist()}
    if isinstance(result, Score):
        return {"scores": [result.value]}
    return {
        "scores": [label.score for label in result.labels],
        "labels": [label.name for label in result.labels],
    }


class TensorFormatter(AnswerFormatter[Embedding | Score | Classification]):
    """One answer with the tensors that are asked for; a row is encoded when its result comes.

    Args:
        tensors: those that are asked for.
        binary: whether each is to be binary.
    """

    stream = False

    def __init__(
        self, model: ModelConfig, request_id: str | None, tensors: Sequence[TensorMetadata], binary: Mapping[str, bool]
    ) -> None:
        self.headers = {"content-type": BINARY if any(binary.values()) else JSON}
        self._model = model
        self._id = request_id or msgspec.UNSET
        self._tensors = tensors
        self._binary = binary
        self._rows: dict[str, list[bytes]] = {tensor.name: [] for tensor in tensors}
        self._width = 0

    def push(self, part: Embedding | Score | Classification, /) -> bytes:
        rows = _rows(part)
        for tensor in self._tensors:
            row = rows[tensor.name]
            self._width = len(row)
            self._rows[tensor.name].append(self._encoded(row, tensor))
        return b""

    def end(self) -> bytes:
        outputs, data = [], []
        for tensor in self._tensors:
            rows = self._rows[tensor.name]
            shape = [len(rows), self._width][: len(tensor.shape)]
            if self._binary[tensor.name]:
                data.append(b"".join(rows))
                values: dict[str, Any] = {"parameters": {BINARY_SIZE: len(data[-1])}}
            else:
                values = {"data": msgspec.Raw(b"[%s]" % b",".join(rows))}
            outputs.append(OutputTensor(name=tensor.name, datatype=tensor.datatype, shape=shape, **values))
        head = encode_json(
            InferResponse(
                model_name=self._model.name, model_version=version_of(self._model), outputs=outputs, id=self._id
            )
        )
        if data:
            self.headers[JSON_LENGTH] = str(len(head))
        return b"".join(itertools.chain([head], data))

    def error(self, error: ServingError) -> bytes:
        return encode_json(TritonError(error.message))

    def _encoded(self, row: Sequence[Any], tensor: TensorMetadata) -> bytes:
        if not self._binary[tensor.name]:
            return encode_json(row)[1:-1]
        return encode_texts(row) if tensor.datatype == "BYTES" else encode_floats(row)
