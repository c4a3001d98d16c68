"""DJL's `HuggingFaceService`: a model of transformers that a `model.py` wraps.

Runs in the worker, in the thread for the user's code, with the model in the same process. With
`option.entryPoint=djl_python.huggingface` and no code of one's own, the built-in handler answers instead, whose engine
batches continuously. Importing this loads neither torch nor transformers.

    from djl_python.huggingface import HuggingFaceService

    service = HuggingFaceService()

    def handle(inputs):
        if not service.initialized:
            service.initialize(inputs.get_properties())
        return None if inputs.is_empty() else service.inference(inputs)

Answers have LMI's dynamic-batch schema, with option.rolling_batch its continuous one; so do those of models that an
engine of LMI's would have batched and none does here (encoder-decoder models).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from ...chat_completions.chat_utils import is_chat_completions_request
from ...core.errors import PayloadError, ServingError
from ...formats.json_framing import JSON, JSONLINES
from ...inputs import Input
from ...outputs import Output
from ...pipelines.loading import (
    ARCHITECTURES_2_TASK,
    checkpoint_of,
    load_config,
    load_model,
    load_tokenizer,
    parse_stop_sequence,
    task_of_architectures,
)
from ...pipelines.tasks import make_pipeline
from ...properties_manager.hf_properties import HuggingFaceProperties, dtype_name
from ...properties_manager.properties import (
    RollingBatchEnum,
    StreamingEnum,
    is_rolling_batch_enabled,
    is_streaming_enabled,
)
from ...rolling_batch.scheduler_rolling_batch import SchedulerRollingBatch
from ...usercode.batch_keys import batch_key
from ..encode_decode import decode, encode
from ..input_parser import ParsedInput, parse_input_with_formatter
from ..request import Request
from ..request_io import TextInput
from ..utils import rolling_batch_inference
from .streaming_utils import StreamingUtils

__all__ = [
    "ARCHITECTURES_2_TASK",
    "HuggingFaceService",
    "StopWord",
    "get_rolling_batch_class_from_str",
    "get_torch_dtype_from_str",
    "handle",
]

#: What a handler may raise of one request: an error that belongs to it alone.
_REFUSALS: Final = (ServingError, ValueError, LookupError, TypeError)


def get_torch_dtype_from_str(dtype: str | None) -> Any:
    """torch's number format of DJL's name for it; "auto" and None are themselves.

    Raises:
        ValueError: it is none of DJL's names.
    """
    if dtype is None or (name := dtype_name(dtype)) == "auto":
        return dtype
    import torch

    return getattr(torch, name)


def get_rolling_batch_class_from_str(rolling_batch_type: str, is_mpi: bool, model_config: Any) -> type:
    """The class that generates where option.rolling_batch is set: here one, whatever the value.

    The other engines that the option names belong to the built-in handler.
    """
    return SchedulerRollingBatch


class StopWord:
    """A stopping criterion for `generate`: the text of the last tokens matches a pattern."""

    def __init__(self, tokenizer: Any, stop_seq: str) -> None:
        self.tokenizer = tokenizer
        self.stop_seq = stop_seq

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> bool:
        text = self.tokenizer.decode(input_ids[0][-len(self.stop_seq) :])
        return re.search(self.stop_seq, text) is not None


class HuggingFaceService:
    """A checkpoint and what it does, by option.task or else by its architecture.

    Attributes:
        initialized: whether `initialize` was called.
        model, tokenizer: transformers' own; None before.
        hf_pipeline: called with a list of inputs and parameters by name. It may be replaced.
        hf_configs: the settings.
        model_config: the checkpoint's config.json.
        rolling_batch: what generates where option.rolling_batch is set, or None.
    """

    def __init__(self) -> None:
        self.initialized = False
        self.model: Any = None
        self.tokenizer: Any = None
        self.hf_pipeline: Any = None
        self.hf_pipeline_unwrapped: Any = None
        self.hf_configs: Any = None
        self.model_config: Any = None
        self.peft_config = None
        self.adapter_registry: dict[str, Any] = {}
        self.rolling_batch: Any = None
        self._one_for_one = False
        self.input_format_args: dict[str, Any] = {}
        self.input_format_configs: Any = None  # the same, of older releases of LMI

    @property
    def pipeline(self) -> Any:
        """The same as `hf_pipeline`."""
        return self.hf_pipeline

    def initialize(self, properties: Mapping[str, Any]) -> None:
        """Load the model that `inputs.get_properties()` names.

        Raises:
            ValueError: a setting is wrong, or the task is none of transformers'.
            ConfigError: there is no such checkpoint.
        """
        configs = self.hf_configs = HuggingFaceProperties(**properties)
        path = checkpoint_of(configs)
        self.model_config = load_config(path, configs)
        if is_rolling_batch_enabled(configs.rolling_batch) and _does_other_than_text(configs.task, self.model_config):
            # Its clients read what LMI's engines answer: an object for a text.
            self._one_for_one = configs.rolling_batch is not RollingBatchEnum.auto
            configs.rolling_batch = RollingBatchEnum.disable
        stops = parse_stop_sequence(properties["stop_sequence"]) if properties.get("stop_sequence") else []
        if is_rolling_batch_enabled(configs.rolling_batch):
            chosen = get_rolling_batch_class_from_str(configs.rolling_batch.value, configs.mpi_mode, self.model_config)
            self.rolling_batch = chosen(path, dict(properties), **configs.kwargs, model_config=self.model_config)
            self.tokenizer = load_tokenizer(path, configs, for_decoder=True)
            self.model = getattr(self.rolling_batch, "model", None)
        elif is_streaming_enabled(configs.enable_streaming):
            task = task_of_architectures(self.model_config)
            decoder = task != "text2text-generation"
            self.tokenizer = load_tokenizer(path, configs, for_decoder=decoder)
            self.model = load_model(path, configs, "AutoModelForCausalLM" if decoder else "AutoModelForSeq2SeqLM")
        else:
            configs.task = configs.task or task_of_architectures(self.model_config)
            self.hf_pipeline = self.hf_pipeline_unwrapped = make_pipeline(configs.task, path, configs, stops)
            self.model, self.tokenizer = self.hf_pipeline.model, self.hf_pipeline.tokenizer
        self.input_format_args = {
            "configs": configs,
            "tokenizer": self.tokenizer,
            "adapter_registry": self.adapter_registry,
            "model_config": self.model_config,
            "peft_config": self.peft_config,
            "rolling_batch": self.rolling_batch,
        }
        self.input_format_configs = SimpleNamespace(
            is_rolling_batch=self.rolling_batch is not None,
            is_adapters_supported=False,
            output_formatter=configs.output_formatter,
            tokenizer=self.tokenizer,
        )
        self.initialized = True

    @staticmethod
    def parse_stop_sequence_input(stop_sequence: str) -> list[str]:
        """The stop sequences of option.stop_sequence.

        Raises:
            ValueError: it is no list of texts in quotes.
        """
        return parse_stop_sequence(stop_sequence)

    def parse_input(self, inputs: Input, tokenizer: Any = None, output_formatter: Any = None) -> tuple[Any, ...]:
        """What a call's requests are: (inputs of all, how many of each, the parameters of each input, errors, calls).

        A handler may replace it by a function of one or of three parameters, as it could in DJL. The errors are texts,
        by the index of the call in its batch.
        """
        data: list[Any] = []
        sizes: list[int] = []
        parameters: list[Any] = []
        errors: dict[int, str] = {}
        batch = inputs.get_batches()
        for index, call in enumerate(batch):
            try:
                own, wanted = _read(call)
            except _REFUSALS as exc:
                errors[index] = f"no {exc}" if isinstance(exc, KeyError) else str(exc)
                sizes.append(0)
                continue
            data += own
            sizes.append(len(own))
            parameters += [wanted] * len(own)
        return data, sizes, parameters, errors, batch

    def inference(self, inputs: Input) -> Output:
        """The answer to a call, or to a dynamic batch of calls; an error is its own call's."""
        if is_rolling_batch_enabled(self.hf_configs.rolling_batch):
            if getattr(self.parse_input, "__func__", None) is HuggingFaceService.parse_input:
                parsed = parse_input_with_formatter(inputs, **self.input_format_args)
            else:
                parsed = self._requests(self._parsed_calls(inputs))
            return rolling_batch_inference(parsed, inputs, Output(), self.rolling_batch)
        calls = self._parsed_calls(inputs)
        if is_streaming_enabled(self.hf_configs.enable_streaming):
            return self._stream(calls)
        return self._answer(inputs, calls)

    def _parsed_calls(self, inputs: Input) -> list[_Call]:
        few = len(inspect.signature(self.parse_input).parameters) == 1
        formatter = self.hf_configs.output_formatter
        parts = self.parse_input(inputs) if few else self.parse_input(inputs, self.tokenizer, formatter)
        return list(_calls(*parts))

    def _requests(self, calls: Sequence[_Call]) -> ParsedInput:
        """The calls as requests to the rolling batch, one each."""
        parsed = ParsedInput(batch=[call.inputs for call in calls])
        for index, call in enumerate(calls):
            if call.error is None and len(call.data) == 1:
                parsed.requests.append(Request(self._text_input(call)))
            else:
                parsed.errors[index] = call.error or f"expected one input, found {len(call.data)}"
        return parsed

    def _text_input(self, call: _Call) -> TextInput:
        (text,), parameters = call.data, dict(call.parameters)
        return TextInput(
            request_id=self.rolling_batch.req_id_counter.next_id(),
            tokenizer=self.tokenizer,
            tgi_compat=self.hf_configs.tgi_compat,
            input_text=text,
            parameters=parameters,
            server_parameters=dict(parameters),
            output_formatter=parameters.get("output_formatter") or self.hf_configs.output_formatter,
        )

    def _answer(self, inputs: Input, calls: Sequence[_Call]) -> Output:
        """Calls with equal parameters are one call of the pipeline."""
        groups: dict[bytes, list[_Call]] = {}
        for call in calls:
            if call.error is None:
                groups.setdefault(msgspec.json.encode(call.parameters, order="sorted"), []).append(call)
        for group in groups.values():
            results = iter(self.hf_pipeline([text for call in group for text in call.data], **group[0].parameters))
            for call in group:
                call.result = [next(results) for _ in call.data]
        outputs = Output()
        for index, call in enumerate(calls):
            position = index if inputs.is_batch() else None
            if call.error is not None:
                outputs.error(call.error, batch_index=position)
                continue
            key = "data" if position is None else batch_key("data", position)
            result = call.result[0] if self._one_for_one and len(call.result) == 1 else call.result
            encode(outputs, result, _accept(call.inputs), key=key)
            if position is not None:
                outputs.add_property(batch_key("content-type", position), outputs.properties.pop("Content-Type"))
        return outputs

    def _stream(self, calls: Sequence[_Call]) -> Output:
        if len(calls) > 1:
            raise NotImplementedError("a dynamic batch can't be streamed: set batch_size=1, or enable_streaming=false")
        (call,) = calls
        if call.error is not None:
            return Output().error(call.error)
        device = self.hf_configs.device
        if self.hf_configs.enable_streaming == StreamingEnum.huggingface:
            pieces: Iterator[list[str]] = StreamingUtils.use_hf_default_streamer(
                self.model, self.tokenizer, call.data, device, **call.parameters
            )
        else:
            generator = StreamingUtils.get_stream_generator("Accelerate")
            pieces = generator(self.model, self.tokenizer, call.data, device, **call.parameters)
        return Output().add_property("content-type", JSONLINES).add_stream_content(pieces)


class _Call:
    """One call of a batch: its inputs and parameters, or the error that they raised; later its result."""

    def __init__(self, inputs: Input, data: Sequence[Any], parameters: Mapping[str, Any], error: str | None) -> None:
        self.inputs = inputs
        self.data = data
        self.parameters = parameters
        self.error = error
        self.result: list[Any] = []


def _does_other_than_text(task: str | None, model_config: Any) -> bool:
    """Whether a model is for something else than generating text, as far as its settings and its architecture tell."""
    try:
        return (task or task_of_architectures(model_config)) not in ("text-generation", "conversational", "generate")
    except ValueError:
        return False


def _calls(
    data: Sequence[Any],
    sizes: Sequence[int],
    parameters: Any,
    errors: Mapping[int, str],
    batch: Sequence[Input],
) -> Iterator[_Call]:
    """The calls of what `parse_input` returns.

    Replacements of it differ: whether there is a size for a call with an error, and whether there are parameters for
    each input, for each call, or once for all.
    """
    remaining, of_inputs = iter(data), len(parameters) == len(data)
    counts = iter(sizes if len(sizes) == len(batch) else (sizes[_valid(errors, index)] for index in range(len(batch))))
    taken = 0
    for index, call in enumerate(batch):
        count = next(counts)
        if index in errors:
            yield _Call(call, (), {}, errors[index])
            continue
        own = [next(remaining) for _ in range(count)]
        if isinstance(parameters, Mapping):
            wanted = parameters
        else:
            wanted = parameters[taken if of_inputs else _valid(errors, index)]
        taken += count
        yield _Call(call, own, wanted, None)


def _valid(errors: Mapping[int, str], index: int) -> int:
    """How many calls before this one have no error."""
    return index - sum(failed < index for failed in errors)


def _read(call: Input) -> tuple[list[Any], dict[str, Any]]:
    """The inputs and the parameters of one call."""
    body = decode(call, call.get_property("content-type"))
    if not isinstance(body, dict):
        return (body if isinstance(body, list) else [body]), {}
    if is_chat_completions_request(body):
        raise PayloadError("messages: this model takes no chats; expected inputs, a text", "messages")
    parameters = body.pop("parameters", None) or {}
    if not isinstance(parameters, dict):
        raise PayloadError("parameters: expected an object", "parameters")
    data = body.pop("inputs", body)
    if data is None or (isinstance(data, str | list) and not data):
        raise PayloadError("inputs: expected a text, or another input of the task", "inputs")
    return (data if isinstance(data, list) else [data]), parameters


def _accept(call: Input) -> str:
    """The content type of the answer: what the client accepts, else that of its tensors, else JSON."""
    accept = call.get_property("accept")
    if accept and "*/*" not in accept:
        return accept
    sent = call.get_property("content-type") or ""
    return sent if sent.startswith("tensor/") and not accept else JSON


_service = HuggingFaceService()


def handle(inputs: Input) -> Output | None:
    """DJL's default handler, for a `model.py` that calls or re-exports it."""
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    return None if inputs.is_empty() else _service.inference(inputs)
