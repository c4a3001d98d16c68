"""What flows through the system: a request once it is parsed, and what comes back of it.

Runs in every process; depends on nothing but msgspec. Everything is frozen: a request is parsed, validated and
tokenized once, and nobody edits it afterwards.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

MAX_SEED = 2**64 - 1
#: Seeds that are drawn here survive a JavaScript client's numbers.
DRAWN_SEED_BITS = 53


class FinishReason(enum.StrEnum):
    """Why a sequence ended. Values are LMI's and TGI's; OpenAI's names are that dialect's mapping."""

    EOS = "eos_token"
    STOP = "stop_sequence"
    LENGTH = "length"
    ERROR = "error"


class Grammar(msgspec.Struct, frozen=True):
    """What the generated text must be an instance of. `source` is a JSON schema or a regular expression as text.

    `field` is the path of the client's field that asks for it, for errors; "": the error speaks for itself.
    """

    kind: Literal["json_schema", "json_object", "regex"]
    source: str = ""
    field: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to draw the next token, for one sequence. Already validated; neutral values switch a rule off.

    Order of application: bias, grammar, bad words, minimum length, repetition, presence and frequency penalties,
    temperature, top_k, top_p, min_p, typical_p (transformers' order), then the draw.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0  # 0 .. 2**64-1; the parser draws one where the client sent none
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    logit_bias: dict[int, float] = {}  # added to the logits of these ids, before everything else
    grammar: Grammar | None = None
    logprobs: bool = True  # whether anyone reads the generated tokens' log-probabilities
    top_logprobs: int = 0  # alternatives to report with each generated token; only with logprobs
    prompt_logprobs: int | None = None  # None: none; n: each prompt token's logprob and n alternatives


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How ids become text, for one request."""

    stop_sequences: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


class Branching(msgspec.Struct, frozen=True, kw_only=True):
    """How many sequences a request generates, and which of them it answers with.

    `best_of` sequences are drawn and the `n` with the highest mean log-probability are returned, best first. With
    `num_beams` > 1 they come from beam search (transformers' definition) instead.
    """

    n: int = 1
    best_of: int = 1
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The tools a chat may call, in OpenAI's form: {"type": "function", "function": {name, description, parameters}}.

    `choice` is "auto" (the model decides), "none", "required" (some tool) or "named" (`name`).
    """

    tools: tuple[dict[str, Any], ...]
    choice: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    parallel: bool = True


class ImageSource(msgspec.Struct, frozen=True):
    """Where an image of a chat is. `field` is the path of `url` in the client's body, for errors."""

    url: str  # data:, http: or https:
    field: str


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that the model's chat template writes. Messages are in OpenAI's form, content already validated.

    An image is a part {"type": "image"} of a message's content, which is the form that templates know; `images` says
    where they are, in the order of the parts.
    `continue_final` leaves the last (assistant's) message open, to be gone on with; otherwise, without
    `add_generation_prompt` the template does not begin an answer.
    `variables` are further names for the template; `variable_fields` has the client's fields of those that the client
    calls something else.
    """

    messages: tuple[dict[str, Any], ...]
    images: tuple[ImageSource, ...] = ()
    tool_use: ToolUse | None = None
    continue_final: bool = False
    add_generation_prompt: bool = True
    template: str | None = None  # a named template of the model's
    variables: dict[str, Any] = {}
    variable_fields: dict[str, str] = {}


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and what to make of it, as a dialect parsed it, before its text has been tokenized.

    `prompt` is text, ids, or a chat. `truncate` keeps the last n prompt tokens.
    Where prompt and max_new_tokens exceed the context, `must_fit` refuses the request; otherwise the context ends it.
    `bad_sequences` become SamplingParams.bad_words_ids once tokenized. `ignored` names what was accepted and has no
    effect; it is sent back in `x-ignored-parameters`.
    """

    prompt: str | tuple[int, ...] | Chat
    sampling: SamplingParams
    branching: Branching = Branching()
    text: TextOptions = TextOptions()
    add_special_tokens: bool = True
    truncate: int | None = None
    must_fit: bool = False
    bad_sequences: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


class Array(msgspec.Struct, frozen=True, array_like=True):
    """An array as it crosses a process: numpy's name of the number format, and the numbers row by row."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Images(msgspec.Struct, frozen=True, array_like=True):
    """The images of one prompt, as the model's own processor prepared them.

    Attributes:
        inputs: what the model is given beside the ids, by its argument's name: pixel_values …
        marks: (position, digest) of each image: from this prompt token on, the prompt depends on that image. What has
            the same tokens and the same marks is the same prompt.
        end: the prompt position after the last token that stands for a part of an image.
    """

    inputs: dict[str, Array]
    marks: tuple[tuple[int, bytes], ...]
    end: int


class ImagePrompt(msgspec.Struct, frozen=True, array_like=True):
    """A prompt with images, ready for an engine."""

    ids: list[int]
    images: Images


class TopToken(msgspec.Struct, frozen=True):
    """An alternative at one position. `partial` are its bytes where they are no whole characters; None: they are."""

    id: int
    text: str
    logprob: float
    special: bool = False
    partial: bytes | None = None


class Token(msgspec.Struct, frozen=True):
    """One generated (or prompt) token. The texts of a generation's tokens, joined, are its generated text.

    `logprob` is the natural logarithm of the model's own probability (before penalties and temperature); None for
    the first prompt token, and where nobody reads it.
    """

    id: int
    text: str
    logprob: float | None
    special: bool = False
    top: tuple[TopToken, ...] = ()


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of the `index`-th tool call of an answer: `id` and `name` come with the first, `arguments` in pieces."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Timings(msgspec.Struct, frozen=True):
    """How long each part of a generation took, in seconds."""

    validation_s: float = 0.0  # parsing and tokenizing
    queue_s: float = 0.0  # for a worker, and then until the first step that worked on it
    inference_s: float = 0.0  # from then to the last token


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one sequence."""

    reason: FinishReason
    text: str  # the generated text, whole
    prompt: str  # what the model was given, as text
    prompt_tokens: int
    generated_tokens: int
    seed: int | None = None  # None for greedy
    prefill: tuple[Token, ...] = ()  # prompt tokens, when asked for
    cumulative_logprob: float = 0.0
    timings: Timings = Timings()


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine step gave one sequence of a request.

    `choice` numbers the sequences of the answer: prompt by prompt, and within a prompt best first. `text` is the
    tokens' text less what was read as a tool call. `prompt` comes with a sequence's first: what the model was given, as
    text.
    """

    choice: int = 0
    prompt: str = ""
    tokens: tuple[Token, ...] = ()
    text: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish: Finish | None = None


class TokenEvent(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What one engine step did to one sequence: ids and numbers only.

    `token_id` is -1 where the event carries none: an error, of the kind that an `errors.ServingError` has. `logprob` is
    None where nobody reads it. `top` are (id, logprob) pairs, best first. `prompt` comes once, with the first token:
    for every prompt position (logprob or None, alternatives).
    """

    request_id: int
    token_id: int
    logprob: float | None = None
    finish: FinishReason | None = None
    top: tuple[tuple[int, float], ...] = ()
    prompt: tuple[tuple[float | None, tuple[tuple[int, float], ...]], ...] = ()
    error: str | None = None
    error_kind: str = "generation"


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    """The engine after a step. Gauges are now, `preemptions` counts since the engine started."""

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    preemptions: int = 0
    step_s: float = 0.0
