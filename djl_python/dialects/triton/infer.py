"""KServe v2's infer for text: BYTES tensors in, BYTES tensors out, as JSON or binary.

Runs in the worker. `text_input` holds one prompt or several; any parameter of the generate extension may come as a
request parameter, as a tensor with one value for all prompts or one for each, or within the JSON object of a tensor
`sampling_parameters`, which clients of Triton's vLLM backend send. Tensors of other names are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ...config import ModelConfig
from ...core.errors import ParameterError, PayloadError, ServingError
from ...core.types import Delta
from ...formats.json_framing import JSON, encode_json
from ...inputs import Input
from ..shared.base import Formatter, Parsed
from ..shared.fields.sequence_limits import excess_sequences
from ..shared.fields.word_lists import excess
from ..shared.request_body import ignored_header, shown
from ..shared.typed_body import read_body, unknown_fields
from .generate import generation_of, is_parameter, json_object, read_parameters, scalars, takes_no_text, version_of
from .tensors import BINARY_SIZE, JSON_LENGTH, Tensor, encode_texts, read_tensors, split_body
from .types import TEXT_INPUT, TEXT_OUTPUT, InferRequest, InferResponse, OutputTensor, TritonError

BINARY: Final = "application/octet-stream"
SAMPLING_PARAMETERS: Final = "sampling_parameters"
_BINARY_OUTPUT: Final = "binary_data_output"


def parse_infer(inputs: Input, model: ModelConfig) -> Parsed:
    """Read a body of `infer`.

    Raises:
        PayloadError, ParameterError: with the field's path.
    """
    head, binary = split_body(inputs.body, inputs.get_property(JSON_LENGTH))
    body = json_object(head)
    shared = scalars(body.get("parameters"))
    request = read_body(body, InferRequest, payload=("inputs", "outputs", "id", "parameters"))
    tensors = read_tensors(request.inputs, binary)
    texts = _texts(tensors.pop(TEXT_INPUT, None))
    as_binary = _wants_binary(request, shared.pop(_BINARY_OUTPUT, False))
    generations = []
    prefixes = []
    ignored = unknown_fields(body, InferRequest, model)
    for index, prompt in enumerate(texts.values):
        own = {tensor.name: _value(tensor, index, len(texts.values)) for tensor in tensors.values()}
        _check_names(own)
        own = {**_sampling_parameters(own.pop(SAMPLING_PARAMETERS, None)), **own}
        parameters, unknown = read_parameters(shared, own, model)
        if parameters.stream:
            unknown.append("stream")
        generations.append(generation_of(prompt, parameters, [*ignored, *unknown]))
        prefixes.append(prompt if parameters.exclude_input_in_output is False else "")
    _check_words("stop", (generation.text.stop_sequences for generation in generations))
    _check_words("bad_words", (generation.bad_sequences for generation in generations))
    names = sorted({name for generation in generations for name in generation.ignored})
    formatter = InferFormatter(model, request.id, texts.shape, prefixes, binary=as_binary)
    formatter.headers |= ignored_header(names)
    return Parsed(tuple(generations), formatter)


def _texts(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise PayloadError(f"inputs: expected a tensor {TEXT_INPUT} of datatype BYTES", "inputs")
    if tensor.datatype != "BYTES":
        raise PayloadError(f"{TEXT_INPUT}: expected datatype BYTES, got {tensor.datatype}", TEXT_INPUT)
    if not tensor.values or not all(tensor.values):
        raise PayloadError(f"{TEXT_INPUT}: expected non-empty texts", TEXT_INPUT)
    if wrong := excess_sequences(len(tensor.values)):
        raise PayloadError(f"{TEXT_INPUT}: {wrong}", TEXT_INPUT)
    return tensor


def _value(tensor: Tensor, index: int, prompts: int) -> Any:
    """The value that a parameter's tensor has for one prompt."""
    if len(tensor.values) not in (1, prompts):
        expected = "1 element" if prompts == 1 else f"1 element, or {prompts}, one for each prompt"
        raise ParameterError(f"{tensor.name}: expected {expected}, got {len(tensor.values)}", tensor.name)
    return tensor.values[0 if len(tensor.values) == 1 else index]


def _check_names(tensors: Iterable[str]) -> None:
    """Check that the model has such inputs."""
    for name in tensors:
        if name != SAMPLING_PARAMETERS and not is_parameter(name):
            raise PayloadError(
                f"inputs: there is no input {shown(name)}, expected {TEXT_INPUT}, {SAMPLING_PARAMETERS}, or the name "
                "of a parameter",
                "inputs",
            )


def _sampling_parameters(text: Any) -> dict[str, Any]:
    """The parameters in a tensor of JSON; that backend takes numbers and flags as strings, too."""
    if text is None:
        return {}
    try:
        given = msgspec.json.decode(text if isinstance(text, str) else b"")
    except msgspec.DecodeError:
        given = None
    if not isinstance(given, dict):
        raise PayloadError(f"{SAMPLING_PARAMETERS}: expected a JSON object, got {shown(text)}", SAMPLING_PARAMETERS)
    return {name: _plain(value) if takes_no_text(name) else value for name, value in given.items()}


def _plain(value: Any) -> Any:
    """The number or the flag that a string stands for; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        found = msgspec.json.decode(value.lower())
    except msgspec.DecodeError:
        return value
    return found if isinstance(found, int | float) else value


def _check_words(name: str, lists: Iterable[tuple[str, ...]]) -> None:
    """A prompt may have texts of its own; they are limited together."""
    if wrong := excess(set(itertools.chain.from_iterable(lists))):
        raise ParameterError(f"{name}: {wrong}", name)


def _wants_binary(request: InferRequest, default: Any) -> bool:
    """Whether text_output is to be binary: as the output's parameters say, else as the request's do."""
    wanted = _flag(default, f"parameters.{_BINARY_OUTPUT}")
    for index, output in enumerate(request.outputs or ()):
        field = f"outputs[{index}]"
        if output.name != TEXT_OUTPUT:
            raise PayloadError(f"{field}.name: expected {TEXT_OUTPUT}, got {output.name!r}", f"{field}.name")
        parameters = output.parameters or {}
        for name in ("classification", "shared_memory_region"):
            if name in parameters:
                raise PayloadError(f"{field}.parameters.{name}: not served", f"{field}.parameters.{name}")
        wanted = _flag(parameters.get("binary_data", wanted), f"{field}.parameters.binary_data")
    return wanted


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise PayloadError(f"{field}: expected true or false, got {shown(value)}", field)
    return value


class InferFormatter(Formatter):
    """One answer with the texts of every prompt, in the shape of `text_input`.

    Args:
        prefixes: for each prompt, a prefix for its text: the prompt, or nothing.
    """

    stream = False
    shows_logprobs = False

    def __init__(
        self,
        model: ModelConfig,
        request_id: str | None,
        shape: Sequence[int],
        prefixes: Sequence[str],
        *,
        binary: bool,
    ) -> None:
        self.headers = {"content-type": BINARY if binary else JSON}
        self._model = model
        self._id = msgspec.UNSET if request_id is None else request_id
        self._shape = list(shape)
        self._texts = list(prefixes)
        self._binary = binary

    def push(self, delta: Delta) -> bytes:
        self._texts[delta.choice] += delta.text
        return b""

    def end(self) -> bytes:
        if not self._binary:
            return encode_json(self._answer(data=self._texts))
        data = encode_texts(self._texts)
        head = encode_json(self._answer(parameters={BINARY_SIZE: len(data)}))
        self.headers[JSON_LENGTH] = str(len(head))
        return head + data

    def error(self, error: ServingError) -> bytes:
        return encode_json(TritonError(error.message))

    def _answer(self, **values: Any) -> InferResponse:
        output = OutputTensor(name=TEXT_OUTPUT, datatype="BYTES", shape=self._shape, **values)
        return InferResponse(
            model_name=self._model.name, model_version=version_of(self._model), outputs=[output], id=self._id
        )
