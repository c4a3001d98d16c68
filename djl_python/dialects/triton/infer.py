"""KServe v2's infer for text: BYTES tensors in, BYTES tensors out, as JSON or binary.

Runs in the worker. `text_input` holds one prompt or several; any parameter of the generate extension may come as a
request parameter, as a tensor with one value for all prompts or one for each, or within the JSON object of a tensor
`sampling_parameters`, which clients of Triton's vLLM backend send. Tensors of other names are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ...config import ModelConfig
from ...core.budgets import SAMPLING_CHARS
from ...core.errors import ParameterError, PayloadError, ServingError
from ...core.types import Delta, GenerateRequest
from ...formats.json_framing import JSON, encode_json
from ...inputs import Input
from ..shared.base import Formatter, Parsed
from ..shared.fields.seeds import with_seed
from ..shared.fields.word_lists import excess
from ..shared.request_body import first_names, ignored_header, shown
from ..shared.typed_body import read_body, unknown_fields
from .generate import (
    generation_of,
    is_parameter,
    json_object,
    read_parameters,
    scalars,
    seed_of,
    takes_no_text,
    unknown_parameters,
    version_of,
)
from .outputs import wanted_outputs
from .tensors import BINARY_SIZE, JSON_LENGTH, Tensor, encode_texts, read_tensors, split_body
from .types import TEXT_INPUT, TEXT_OUTPUT, InferRequest, InferResponse, OutputTensor, TritonError, TritonParameters

BINARY: Final = "application/octet-stream"
SAMPLING_PARAMETERS: Final = "sampling_parameters"


def parse_infer(inputs: Input, model: ModelConfig) -> Parsed:
    """Read a body of `infer`.

    Raises:
        PayloadError, ParameterError: with the field's path.
    """
    head, binary = split_body(inputs.body, inputs.get_property(JSON_LENGTH))
    body = json_object(head, model.option.max_request_values)
    shared = scalars(body.get("parameters"))
    request = read_body(body, InferRequest, payload=("inputs", "outputs", "id", "parameters"))
    _check_names(request)
    tensors = read_tensors(request.inputs, binary)
    texts = prompts_of(tensors.pop(TEXT_INPUT))
    as_binary = wanted_outputs(request, shared, (TEXT_OUTPUT,))[TEXT_OUTPUT]
    ignored = unknown_fields(body, InferRequest, model) + unknown_parameters(shared, model)
    given = {name: value for name, value in shared.items() if is_parameter(name)}
    own = _OwnParameters(tensors, given, len(texts.values), model)
    generations = own.generations(texts.values, ignored)
    prefixes = [
        prompt if own.parameters(index).exclude_input_in_output is False else ""
        for index, prompt in enumerate(texts.values)
    ]
    _check_words("stop", (generation.text.stop_sequences for generation in generations))
    _check_words("bad_words", (generation.bad_sequences for generation in generations))
    names = first_names(set[str]().union(*{generation.ignored for generation in generations}))
    formatter = InferFormatter(model, request.id, texts.shape, prefixes, binary=as_binary)
    formatter.headers |= ignored_header(names)
    return Parsed(tuple(generations), formatter)


def prompts_of(tensor: Tensor) -> Tensor:
    """The texts of the prompt tensor.

    Raises:
        PayloadError: the tensor is no list of texts, or a text is empty.
    """
    if tensor.datatype != "BYTES":
        raise PayloadError(f"{tensor.name}: expected datatype BYTES, got {tensor.datatype}", tensor.name)
    if not tensor.values or not all(tensor.values):
        raise PayloadError(f"{tensor.name}: expected non-empty texts", tensor.name)
    return tensor


class _OwnParameters:
    """The parameters of each prompt: from tensors, and from `parameters`, which override them. Parameters for all
    prompts are read once, and so is a text that several prompts share.

    Args:
        tensors: those of parameters, and of their JSON.
        given: the parameters in `parameters`.
        prompts: how many there are.

    Raises:
        ParameterError: a tensor has neither one value nor one for each prompt.
        PayloadError: the JSON is too long.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], given: Mapping[str, Any], prompts: int, model: ModelConfig
    ) -> None:
        for tensor in tensors.values():
            if len(tensor.values) not in (1, prompts):
                expected = "1 element" if prompts == 1 else f"1 element, or {prompts}, one for each prompt"
                raise ParameterError(f"{tensor.name}: expected {expected}, got {len(tensor.values)}", tensor.name)
        texts = tensors[SAMPLING_PARAMETERS].values if SAMPLING_PARAMETERS in tensors else ()
        if wrong := SAMPLING_CHARS.excess(sum(len(text) for text in set(texts) if isinstance(text, str))):
            raise PayloadError(f"{SAMPLING_PARAMETERS}: {wrong}", SAMPLING_PARAMETERS)
        self._tensors = tensors
        self._given = given
        self._model = model
        self._differ = any(len(tensor.values) > 1 for tensor in tensors.values())
        self._read: dict[int, tuple[TritonParameters, list[str]]] = {}
        self._sampling: dict[Any, tuple[dict[str, Any], list[str]]] = {}

    def generations(self, prompts: Sequence[str], ignored: list[str]) -> list[GenerateRequest]:
        """A request for each prompt. `ignored` are the names of parameters without effect, of all prompts together."""
        made: list[GenerateRequest] = []
        for index, prompt in enumerate(prompts):
            if made and not self._differ:
                sampling = with_seed(made[0].sampling, seed_of(self.parameters(0)))
                made.append(msgspec.structs.replace(made[0], prompt=prompt, sampling=sampling))
            else:
                parameters, unknown = self._of(index)
                made.append(generation_of(prompt, parameters, [*ignored, *unknown]))
        return made

    def parameters(self, index: int) -> TritonParameters:
        """A prompt's parameters."""
        return self._of(index)[0]

    def _of(self, index: int) -> tuple[TritonParameters, list[str]]:
        """A prompt's parameters, and the names that have no effect."""
        index = index if self._differ else 0
        if index not in self._read:
            values = {name: tensor.values[min(index, len(tensor.values) - 1)] for name, tensor in self._tensors.items()}
            sampling, unknown = self._sampling_parameters(values.pop(SAMPLING_PARAMETERS, None))
            parameters, lost = read_parameters(self._given, {**sampling, **values}, self._model)
            stream = ["stream"] if parameters.stream else []
            self._read[index] = parameters, [*unknown, *lost, *stream]
        return self._read[index]

    def _sampling_parameters(self, text: Any) -> tuple[dict[str, Any], list[str]]:
        """The parameters in a text of JSON, and the unknown names."""
        if text not in self._sampling:
            given = _sampling_parameters(text)
            unknown = unknown_parameters(given, self._model)
            self._sampling[text] = {name: value for name, value in given.items() if is_parameter(name)}, unknown
        return self._sampling[text]


def _check_names(request: InferRequest) -> None:
    """Check that the request has prompts, and no inputs that the model lacks."""
    if all(tensor.name != TEXT_INPUT for tensor in request.inputs):
        raise PayloadError(f"inputs: expected a tensor {TEXT_INPUT} of datatype BYTES", "inputs")
    for tensor in request.inputs:
        if tensor.name not in (TEXT_INPUT, SAMPLING_PARAMETERS) and not is_parameter(tensor.name):
            raise PayloadError(
                f"inputs: there is no input {shown(tensor.name)}, expected {TEXT_INPUT}, {SAMPLING_PARAMETERS}, or the "
                "name of a parameter",
                "inputs",
            )


def _sampling_parameters(text: Any) -> dict[str, Any]:
    """The parameters in a tensor of JSON; that backend takes numbers and flags as strings, too."""
    if text is None:
        return {}
    try:
        given = msgspec.json.decode(text if isinstance(text, str) else b"")
    except (msgspec.DecodeError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise PayloadError(f"{SAMPLING_PARAMETERS}: expected a JSON object, got {shown(text)}", SAMPLING_PARAMETERS)
    return {name: _plain(value) if takes_no_text(name) else value for name, value in given.items()}


def _plain(value: Any) -> Any:
    """The number or the flag that a string stands for; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        parsed = msgspec.json.decode(value.lower())
    except (msgspec.DecodeError, RecursionError):
        return value
    return parsed if isinstance(parsed, int | float) else value


def _check_words(name: str, lists: Iterable[tuple[str, ...]]) -> None:
    """A prompt may have texts of its own; they are limited together."""
    if wrong := excess(set(itertools.chain.from_iterable({id(words): words for words in lists}.values()))):
        raise ParameterError(f"{name}: {wrong}", name)


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
        self._id = request_id or msgspec.UNSET
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
