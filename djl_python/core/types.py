"""The data that flows through the system: a parsed request, and its results.

Runs in every process; depends on nothing but msgspec. Everything is frozen: a request is parsed, validated and
tokenized once, and never changed afterwards.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

MAX_SEED = 2**64 - 1
#: Bits of the seeds that the server draws: a JavaScript client's numbers hold them exactly.
DRAWN_SEED_BITS = 53


class FinishReason(enum.StrEnum):
    """Why a sequence ended. Values are LMI's and TGI's; the OpenAI dialect maps them to OpenAI's names."""

    EOS = "eos_token"
    STOP = "stop_sequence"
    LENGTH = "length"
    ERROR = "error"


class FreeText(msgspec.Struct, frozen=True):
    """Text before a constraint, such as reasoning: it begins with one of `starts`, or if `begun` with anything, and
    goes on up to the first of `ends`. Unless `begun`, it may be missing."""

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    begun: bool


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on the generated text. `source` is a JSON schema, a regular expression, or a GBNF grammar as text.

    `field` is the path of the request's field that asks for it, which errors name; "": errors name no field. `before`
    is what the model may write first.
    """

    kind: Literal["json_schema", "json_object", "regex", "gbnf"]
    source: str = ""
    field: str = ""
    before: FreeText | None = None


class Vocabulary(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of a tokenizer as grammars need them: a text is the concatenation of its tokens' bytes.

    Attributes:
        tokens: by id: the bytes that a token stands for in the middle of a text; b"" for an id that no text has.
        special: ids of the special tokens, which are no part of a text.
        ends: ids that end a text, where the model itself names none.
        definition: the tokenizer as tokenizer.json has it; "" where it has no such form.
    """

    tokens: list[bytes]
    special: list[int]
    ends: list[int]
    definition: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to sample the next token of one sequence. Already validated; neutral values switch a rule off.

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
    logprobs: bool = True  # whether the generated tokens' log-probabilities are needed
    top_logprobs: int = 0  # alternatives to report with each generated token; only with logprobs
    prompt_logprobs: int | None = None  # None: none; n: each prompt token's logprob and n alternatives


class DecoderTokens(msgspec.Struct, frozen=True, array_like=True):
    """How the decoder of an encoder-decoder model begins its text, and how it ends it.

    Attributes:
        start_ids: the tokens that it begins with and does not generate: the start token, and a forced first one.
        forced: how many of them transformers counts as generated.
        forced_eos: the last token of a text that has as many as it may have; None: the one that is drawn.
    """

    start_ids: tuple[int, ...]
    forced: int = 0
    forced_eos: int | None = None


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """What a request to an encoder-decoder says of languages. None: as the tokenizer and the model have it.

    Attributes:
        src_lang, tgt_lang: the prompt's language and the answer's, as the tokenizer names them.
        forced_bos_token_id: the answer's first token, which is not generated: most often a language.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None
    forced_bos_token_id: int | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How token ids become text, for one request."""

    stop_sequences: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


class Branching(msgspec.Struct, frozen=True, kw_only=True):
    """How many sequences a request generates, and which of them it returns.

    Attributes:
        n: how many are returned.
        best_of: how many are drawn. If these are more, the `n` with the highest mean log-probability are returned.
        ranked: whether the likeliest comes first, also where all are returned; else they are in the order of drawing.
        num_beams: above 1, the sequences come from beam search (transformers' definition) instead.
    """

    n: int = 1
    best_of: int = 1
    ranked: bool = False
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The tools a chat may call, in OpenAI's form: {"type": "function", "function": {name, description, parameters}}.

    `choice` is "auto" (the model decides), "none", "required" (some tool) or "named" (`name`). `prompt` introduces the
    tools to a model whose chat template has no place for them.
    """

    tools: tuple[dict[str, Any], ...]
    choice: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    parallel: bool = True
    prompt: str = ""

    @property
    def forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice in ("required", "named")

    @property
    def callable(self) -> tuple[dict[str, Any], ...]:
        """The tools that may be called."""
        if self.choice != "named":
            return self.tools
        return tuple(tool for tool in self.tools if tool["function"]["name"] == self.name)


class ImageSource(msgspec.Struct, frozen=True):
    """The source of a chat's image. `field` is the path of `url` in the client's body; errors name it."""

    url: str  # data:, http: or https:
    field: str


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that the model's chat template renders. Messages are in OpenAI's form, content already validated.

    An image is a part {"type": "image"} of a message's content, the form that templates expect; `images` has the
    sources, in the order of the parts.
    `continue_final` leaves the last (assistant's) message open, for the model to continue. Otherwise
    `add_generation_prompt` says whether the template begins an answer.
    `variables` are further variables for the template; `variable_fields` maps a variable to the client's field where
    the two names differ.
    """

    messages: tuple[dict[str, Any], ...]
    images: tuple[ImageSource, ...] = ()
    tool_use: ToolUse | None = None
    continue_final: bool = False
    add_generation_prompt: bool = True
    variables: dict[str, Any] = {}
    variable_fields: dict[str, str] = {}


class ThinkingBudget(msgspec.Struct, frozen=True):
    """Most tokens of a chat's reasoning; then the model's own closing mark ends it.

    `field` is the client's name of the limit.
    """

    tokens: int
    field: str


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to generate from it, as a dialect parsed it, before tokenization.

    Attributes:
        prompt: a text, token ids, or a chat.
        truncate: keep the last so many tokens of the prompt; None: all.
        splits_reasoning: whether the answer has a field for the model's reasoning, which `thinking_budget` limits.
        must_fit: refuse a prompt that leaves less than max_new_tokens of the context; else the context ends the answer.
        bad_sequences: texts that become SamplingParams.bad_words_ids once tokenized.
        adapter: the name of a LoRA adapter (`ModelConfig.adapters`); "": none.
        priority: the body's, lower first; None: the body has none.
        cache_salt: only prompts with an equal one share KV blocks; "": no salt.
        ignored: accepted parameters without effect, for the header `x-ignored-parameters`.
    """

    prompt: str | tuple[int, ...] | Chat
    sampling: SamplingParams
    branching: Branching = Branching()
    text: TextOptions = TextOptions()
    add_special_tokens: bool = True
    truncate: int | None = None
    splits_reasoning: bool = False
    thinking_budget: ThinkingBudget | None = None
    must_fit: bool = False
    bad_sequences: tuple[str, ...] = ()
    adapter: str = ""
    priority: int | None = None
    cache_salt: str = ""
    ignored: tuple[str, ...] = ()
    translation: Translation | None = None


class Array(msgspec.Struct, frozen=True, array_like=True):
    """An array sent between processes: numpy's name of the dtype, and the elements in row-major order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Images(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The images of one prompt, as the model's own processor prepared them.

    Attributes:
        inputs: the model's inputs besides the token ids, by argument name: pixel_values …
        marks: (position, digest) of each image: from this prompt token on, the prompt depends on that image. Prompts
            with the same tokens and the same marks are the same prompt.
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
    """An alternative at one position. `partial` has its bytes if these are not whole characters, else None."""

    id: int
    text: str
    logprob: float
    special: bool = False
    partial: bytes | None = None

    @property
    def own_bytes(self) -> bytes:
        """The bytes that the token stands for: a part of a character, perhaps."""
        return self.text.encode() if self.partial is None else self.partial


class Token(msgspec.Struct, frozen=True):
    """One token of an answer or a prompt.

    Attributes:
        text: what the token adds to the text: nothing at the end of the text, or before a character is complete. The
            texts of an answer's tokens, joined, are the answer.
        logprob: the natural logarithm of the model's own probability, before penalties and temperature; None for the
            first token of a prompt, and where nobody asked for it.
        top: alternatives at the position, the likeliest first.
        name, partial: the token's own text and bytes, as in TopToken; None without a `logprob`.
        rank: of a prompt's token: how many tokens are at least as likely at its position, itself included; None where
            the engine does not report it.
    """

    id: int
    text: str
    logprob: float | None
    special: bool = False
    top: tuple[TopToken, ...] = ()
    name: str | None = None
    partial: bytes | None = None
    rank: int | None = None

    @property
    def alternative(self) -> TopToken | None:
        """The token as one of the alternatives at its position; None without a `logprob`."""
        if self.logprob is None:
            return None
        name = self.text if self.name is None else self.name
        return TopToken(self.id, name, self.logprob, self.special, self.partial)


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of the `index`-th tool call of an answer: the first has `id` and `name`; `arguments` come in pieces."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Timings(msgspec.Struct, frozen=True):
    """How long each part of a generation took, in seconds."""

    validation_s: float = 0.0  # parsing and tokenizing
    queue_s: float = 0.0  # waiting for a worker, and then for the first step that works on the sequence
    inference_s: float = 0.0  # from that step to the last token


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one sequence."""

    reason: FinishReason
    stop: str | None = None  # the stop sequence that ended it; None: something else did
    text: str  # the generated text, whole
    prompt: str  # what the model was given, as text
    prompt_tokens: int
    generated_tokens: int
    reasoning_tokens: int | None = None  # tokens of the reasoning and its marks; None: it is not separated
    cached_tokens: int | None = None  # prompt tokens found in the prefix cache; None: unknown
    seed: int | None = None  # None for greedy
    prefill: tuple[Token, ...] = ()  # prompt tokens, when asked for
    cumulative_logprob: float = 0.0
    timings: Timings = Timings()


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one engine step for one sequence of a request.

    Attributes:
        choice: the number of the sequence in the answer: prompt by prompt.
        prompt: in a sequence's first delta, the prompt as the model got it, as text; else "".
        prefill: in a sequence's first delta, the prompt's tokens, if they were asked for.
        tokens: the new tokens.
        text: their text, without what belongs to `reasoning` or `tool_calls`.
        finish: the end of the sequence, in its last delta.
    """

    choice: int = 0
    prompt: str = ""
    prefill: tuple[Token, ...] = ()
    tokens: tuple[Token, ...] = ()
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish: Finish | None = None


class TokenEvent(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A token that an engine generated for a sequence, or an error: ids and numbers, no text.

    Attributes:
        token_id: -1 in an error.
        logprob: None where nobody asked for it.
        top: (id, logprob) of the alternatives, the likeliest first.
        prompt: with the first token, if asked for: (logprob or None, alternatives) of every position of the prompt.
        error: the message of an error; `error_kind` is the kind of its ServingError.
        running_s: with the first token: seconds since the first step that computed a part of the prompt began.
        cached_tokens: with the first token: how many of the prompt's tokens were in the prefix cache; None: unknown.
        prompt_ranks: with `prompt`, if known: how many tokens are at least as likely at each position as the prompt's;
            None for the first position.
    """

    request_id: int
    token_id: int
    logprob: float | None = None
    finish: FinishReason | None = None
    top: tuple[tuple[int, float], ...] = ()
    prompt: tuple[tuple[float | None, tuple[tuple[int, float], ...]], ...] = ()
    error: str | None = None
    error_kind: str = "generation"
    running_s: float | None = None
    cached_tokens: int | None = None
    prompt_ranks: tuple[int | None, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether the sequence has no further events."""
        return self.finish is not None or self.error is not None
