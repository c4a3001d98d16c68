"""MindIE's streaming endpoint /generate_stream, for models with option.tgi_dialect=mindie.

The path's route belongs to TGI's dialect, which leaves such models to this one. Parsing and answering run in the
worker. Source: MindIE's document of its TGI streaming interface; its refusals have TGI's shape.

What differs from TGI: events have no index, a token's logprob and special are null, a seed is always reported, and
with option.full_text_enabled each event's token.text is the text so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ...config import ModelConfig
from ...core import budgets
from ...core.errors import ParameterError, PayloadError, ServingError
from ...core.types import (
    MAX_SEED,
    Chat,
    Finish,
    FinishReason,
    GenerateRequest,
    ImageSource,
    SamplingParams,
    TextOptions,
    Token,
)
from ...formats.json_framing import JSON, SSE
from ...inputs import Input
from ..shared.adapters import adapter_named, field_before_parsing
from ..shared.base import Answer, Dialect, Parsed, Route
from ..shared.fields.sampling import DrawFields
from ..shared.fields.seeds import drawn_seed
from ..shared.fields.structured_output import refuse_constraints
from ..shared.fields.word_lists import excess
from ..shared.request_body import ignored_header, json_object
from ..shared.typed_body import read_body, unknown_fields
from ..shared.typed_errors import ErrorResponse, documented_errors, typed_answer, typed_stream_error
from ..shared.typed_stream import TypedStreamFormatter

DEFAULT_MAX_NEW_TOKENS: Final = 20
MAX_INPUT_CHARS: Final = 4 * 1024 * 1024
MAX_IMAGES: Final = 1
#: The adapter_id of no adapter.
_BASE_MODEL: Final = "None"
_DRAW: Final = DrawFields({"temperature": (1.0,), "top_k": (), "top_p": ()})

Count = Annotated[int, Meta(gt=0, le=2**31 - 1)]
AboveZero = Annotated[float, Meta(gt=0)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]


class MindieText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of the prompt."""

    text: Annotated[str, Meta(min_length=1)]


class MindieImage(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image: a data URL, or an http(s) URL."""

    image_url: Annotated[str, Meta(min_length=1)]


class MindieParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Generation parameters. Without do_sample, a temperature other than 1, a top_k or a top_p switches sampling on."""

    decoder_input_details: Annotated[bool | None, Meta(description="Only false.")] = None
    details: Annotated[bool | None, Meta(description="Details with the last event; false by default.")] = None
    do_sample: bool | None = None
    max_new_tokens: Annotated[Count | None, Meta(description="20 by default.")] = None
    repetition_penalty: AboveZero | None = None
    return_full_text: Annotated[bool | None, Meta(description="Begin generated_text with the prompt.")] = None
    seed: Annotated[int | None, Meta(description="1 to 2^64-1; one is drawn where there is none.")] = None
    temperature: AboveZero | None = None
    top_k: Count | None = None
    top_p: Annotated[float, Meta(gt=0, lt=1)] | None = None
    truncate: Annotated[Count | None, Meta(description="Keep so many of the prompt's tokens.")] = None
    typical_p: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, Meta(description="Without effect.")] = None
    watermark: Annotated[bool | None, Meta(description="Without effect.")] = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=budgets.WORDS.most)] | None = None
    adapter_id: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9._/-]{1,256}$")] | None,
        Meta(description='A LoRA adapter of the model; "None": the base model.'),
    ] = None


class MindieRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request: a text, or for models that take images a list of parts."""

    inputs: (
        Annotated[str, Meta(min_length=1, max_length=MAX_INPUT_CHARS)]
        | Annotated[list[MindieText | MindieImage], Meta(min_length=1, max_length=budgets.PARTS.most)]
    )
    parameters: MindieParameters | None = None
    model: Annotated[str | None, Meta(description="Not MindIE's: which of several models answers.")] = None


class MindieToken(msgspec.Struct, frozen=True):
    """A token; MindIE reports neither its probability nor whether it is special."""

    id: int
    text: str
    logprob: None = None
    special: None = None


class MindieDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream ended."""

    prompt_tokens: int
    finish_reason: FinishReason
    generated_tokens: int
    seed: int


class MindieEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event; the last also has `generated_text`, and `details` if the client asked for them."""

    token: MindieToken
    generated_text: str | None = None
    details: MindieDetails | None = None


class MindieDialect(Dialect):
    """MindIE's variant of TGI's API."""

    name = "mindie"
    summary = "MindIE's variant of TGI's API."
    shared = (
        Route(
            "POST",
            "/generate_stream",
            "generate_stream",
            summary="MindIE's, for models with option.tgi_dialect=mindie.",
            request=MindieRequest,
            responses={200: {SSE: (MindieEvent, ErrorResponse)}, **documented_errors(JSON)},
        ),
    )

    def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
        """Read a request. Names that have no effect go into x-ignored-parameters."""
        body = json_object(inputs, model)
        request = read_body(body, MindieRequest, payload=("inputs",))
        refuse_constraints(body)
        refuse_constraints(body.get("parameters") or {}, "parameters.")
        unknown = unknown_fields(body, MindieRequest, model)
        parameters = request.parameters or MindieParameters()
        _check(parameters)
        ignored = {name.removeprefix("parameters.") for name in unknown} | set(_without_effect(parameters, model))
        names = tuple(sorted(ignored))
        sampling = _sampling(parameters)
        prompt = _prompt(request.inputs, model)
        wanted = GenerateRequest(
            prompt=prompt,
            sampling=sampling,
            text=TextOptions(stop_sequences=_stops(parameters)),
            add_special_tokens=isinstance(prompt, str),
            truncate=parameters.truncate,
            adapter=_adapter(parameters.adapter_id, model),
            ignored=names,
        )
        formatter = MindieFormatter(
            seed=sampling.seed,
            details=bool(parameters.details),
            full_text=_text(request.inputs) if parameters.return_full_text else "",
            cumulative=model.option.full_text_enabled,
            headers=ignored_header(names),
        )
        return Parsed((wanted,), formatter)

    def adapters_of(self, inputs: Input, model: ModelConfig) -> Sequence[str]:
        return [_adapter(field_before_parsing(inputs, model, "parameters", "adapter_id"), model)]

    def error(
        self,
        error: ServingError,
        model: ModelConfig | None = None,
        *,
        operation: str = "",
        inputs: Input | None = None,
    ) -> Answer:
        return typed_answer(error)

    def stream_error(self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None) -> bytes:
        return typed_stream_error(error, headers)


# ------------------------------------------------------------------------------------------------ reading


def _check(parameters: MindieParameters) -> None:
    """Check what the types and bounds do not cover."""
    if parameters.decoder_input_details:
        raise _error("decoder_input_details", "expected false where the answer is a stream, got true")
    if parameters.seed is not None and not 1 <= parameters.seed <= MAX_SEED:
        raise _error("seed", f"expected an integer > 0 and <= {MAX_SEED}, got {parameters.seed}")
    if wrong := excess(_stops(parameters)):
        raise _error("stop", wrong)


def _adapter(named: object, model: ModelConfig) -> str:
    return adapter_named("" if named == _BASE_MODEL else named, model, "parameters.adapter_id")


def _error(name: str, what: str) -> ParameterError:
    field = f"parameters.{name}"
    return ParameterError(f"{field}: {what}", field)


def _without_effect(parameters: MindieParameters, model: ModelConfig) -> list[str]:
    """Names that are accepted without effect; those that never have one are refused under
    option.unknown_parameters=error."""
    given = {"typical_p": parameters.typical_p not in (None, 1.0), "watermark": bool(parameters.watermark)}
    names = [name for name, does_nothing in given.items() if does_nothing]
    if names and model.option.unknown_parameters == "error":
        raise _error(names[0], "not supported (option.unknown_parameters=error)")
    if not _samples(parameters):
        names += _DRAW.ignored(parameters)
    return names


def _samples(parameters: MindieParameters) -> bool:
    return bool(_DRAW.asked(parameters)) if parameters.do_sample is None else parameters.do_sample


def _sampling(parameters: MindieParameters) -> SamplingParams:
    """The engine's sampling parameters. Those that only steer sampling stay neutral for greedy requests."""
    draws = _samples(parameters)
    given = _DRAW.given(parameters) if draws else {}
    if parameters.repetition_penalty is not None:
        given["repetition_penalty"] = parameters.repetition_penalty
    return SamplingParams(
        **given,
        max_new_tokens=parameters.max_new_tokens or DEFAULT_MAX_NEW_TOKENS,
        do_sample=draws,
        seed=parameters.seed or 1 + drawn_seed(),
    )


def _stops(parameters: MindieParameters) -> tuple[str, ...]:
    """The stop texts."""
    stop = parameters.stop or ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _prompt(inputs: str | list[MindieText | MindieImage], model: ModelConfig) -> str | Chat:
    """The text, or with images a chat of one message: the chat template decides where images go in the prompt."""
    text = _text(inputs)
    if len(text) > MAX_INPUT_CHARS:
        raise PayloadError(f"inputs: expected at most {MAX_INPUT_CHARS} characters together, got {len(text)}", "inputs")
    images = [] if isinstance(inputs, str) else [i for i, part in enumerate(inputs) if isinstance(part, MindieImage)]
    if isinstance(inputs, str) or not images:
        return text
    field = f"inputs[{images[0]}]"
    if not model.checkpoint.takes_images:
        raise PayloadError(f"{field}: this model does not take images, expected text", field)
    if len(images) > MAX_IMAGES:
        raise PayloadError(f"inputs: expected at most {MAX_IMAGES} image, got {len(images)}", "inputs")
    return Chat(
        messages=({"role": "user", "content": [_content(part) for part in inputs]},),
        images=tuple(
            _source(part, f"inputs[{i}].image_url") for i, part in enumerate(inputs) if isinstance(part, MindieImage)
        ),
    )


def _content(part: MindieText | MindieImage) -> dict[str, str]:
    """A part in the form of a chat message's content."""
    return {"type": "text", "text": part.text} if isinstance(part, MindieText) else {"type": "image"}


def _source(part: MindieImage, field: str) -> ImageSource:
    if not part.image_url.startswith(("data:", "http://", "https://")):
        raise PayloadError(f"{field}: expected a data: or http(s) URL; files of the server are not read", field)
    return ImageSource(part.image_url, field)


def _text(inputs: str | list[MindieText | MindieImage]) -> str:
    if isinstance(inputs, str):
        return inputs
    return "".join(part.text for part in inputs if isinstance(part, MindieText))


# ------------------------------------------------------------------------------------------------ answering


class MindieFormatter(TypedStreamFormatter):
    """An event for each token.

    Args:
        seed: the client's seed, or the one drawn for it.
        full_text: a prefix for the generated text: the prompt, or nothing.
        cumulative: whether token.text is the whole text so far.
    """

    shows_logprobs = False

    def __init__(
        self, *, seed: int, details: bool, full_text: str = "", cumulative: bool = False, headers: dict[str, str]
    ) -> None:
        super().__init__(headers)
        self._seed = seed
        self._details = details
        self._full_text = full_text
        self._cumulative = cumulative
        self._so_far = ""

    def _event(self, token: Token, finish: Finish | None) -> MindieEvent:
        text = token.text
        if self._cumulative:
            self._so_far += text
            text = self._so_far
        return MindieEvent(
            token=MindieToken(token.id, text),
            generated_text=None if finish is None else self._full_text + finish.text,
            details=None if finish is None or not self._details else self._stream_details(finish),
        )

    def _stream_details(self, finish: Finish) -> MindieDetails:
        return MindieDetails(
            prompt_tokens=finish.prompt_tokens,
            finish_reason=finish.reason,
            generated_tokens=finish.generated_tokens,
            seed=self._seed,
        )
