"""Preparing a request: rendering its chat, tokenizing its text, setting up its tools, checking its limits.

Runs in the worker's event loop; long work is done in a thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from djl_python.config import Options
from djl_python.core.errors import ContextLengthError, ParameterError, PayloadError
from djl_python.core.pictures import AnyImages
from djl_python.core.types import Chat, FreeText, GenerateRequest, Grammar, SamplingParams, ToolUse
from djl_python.engine.interface import ALL_PARAMETERS
from djl_python.text.chat import ChatTemplates
from djl_python.text.reasoning import ReasoningParser, reasoning_parser
from djl_python.text.stop import StopSequences
from djl_python.text.tokens.long_texts import is_long, last_tokens, least_tokens
from djl_python.text.tokens.tokenizer import Tokenizer
from djl_python.text.tools.json_calls import ForcedParser
from djl_python.text.tools.parser import ToolParser, forced_calls, syntax_of, tool_parser_class

from .images.pictures import PictureReader
from .images.processor import ImageProcessor
from .word_lists import WordLists, hidden_stops

log = logging.getLogger(__name__)

#: Longer prompts are tokenized in a thread: at about a million characters a second this is 20 ms of the loop's time.
LONG_PROMPT_CHARS: Final = 20_000
#: Sampling parameters that a request always has, whether its client sent them or not.
_NOT_THE_CLIENTS: Final = frozenset({"max_new_tokens", "seed"})


@dataclass(frozen=True)
class Prepared:
    """One prompt, ready for the engine.

    `request.sampling` is complete. `text` is the prompt as the model sees it; its images are in `images`. `tokenizer`
    decodes the answer. `new_parser` makes the parser of one sequence's tool calls, `new_reasoning` that of its
    reasoning, which comes before them. `answer_form` is the grammar of an answer that calls no tool: the model begins
    without it, and so decides whether it calls one. `stops` are the compiled stop sequences of all sequences of the
    prompt.
    """

    request: GenerateRequest
    ids: list[int]
    text: str
    tokenizer: Tokenizer
    new_parser: Callable[[], ToolParser] | None = None
    new_reasoning: Callable[[], ReasoningParser] | None = None
    answer_form: Grammar | None = None
    images: AnyImages | None = None
    stops: StopSequences | None = None

    @property
    def has_grammar(self) -> bool:
        """Whether an answer may have to match a grammar."""
        return self.request.sampling.grammar is not None or self.answer_form is not None


class Preparation:
    """Prepares the requests of one model.

    Args:
        max_model_len: the model's context, in tokens.
        images: prepares images, for a model that takes them.
        no_images: why there are none, where a request has some.
        vocabulary: how many token ids the model takes; None: as many as the tokenizer has.
        parameters: fields of `SamplingParams` that the engine honours (`Engine.parameters`).

    Raises:
        ConfigError: option.tool_call_parser or option.reasoning_parser names no parser.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        option: Options,
        max_model_len: int,
        images: ImageProcessor | PictureReader | None = None,
        vocabulary: int | None = None,
        parameters: frozenset[str] = ALL_PARAMETERS,
        no_images: str = "this model does not take images",
    ) -> None:
        self._tokenizer = tokenizer
        self._images = images
        self._no_images = no_images
        self._templates = ChatTemplates(tokenizer.chat_templates, tokenizer.special_tokens)
        for reason in self._templates.broken:
            log.warning("%s: chats are refused", reason)
        self._parser = _tool_parser(tokenizer, option)
        self._reasoning = reasoning_parser(
            option.enable_reasoning, option.reasoning_parser, tokenizer.chat_templates.values()
        )
        self._refuses_unknown = option.unknown_parameters == "error"
        self._vocabulary = min(tokenizer.vocab_size, vocabulary or tokenizer.vocab_size)
        self._context = max_model_len
        self._without_effect = tuple(sorted(ALL_PARAMETERS - parameters - _NOT_THE_CLIENTS))
        self._max_input = option.max_input_tokens
        self._longest = min(max_model_len - 1, self._max_input or max_model_len)  # most tokens of a prompt

    def render(self, chat: Chat) -> str:
        """The prompt text that the model's chat template makes of a chat.

        Raises:
            PayloadError: the model has no template, or the template refuses these messages.
        """
        return self._templates.render(chat)

    async def prepare(self, requests: Sequence[GenerateRequest], *, long: bool) -> list[Prepared]:
        """Prepare a client's request, one prompt after the other; the loop's other work runs between them.

        Args:
            long: whether it may take long to render its chat.

        Raises:
            PayloadError: the prompt is empty, an image is not valid, or the template refuses the chat.
            ParameterError: prompt and answer do not fit the model, or parameters contradict each other.
        """
        lists = WordLists(self._tokenizer)
        prompts: list[Prepared] = []
        for request in requests:
            if prompts:
                await asyncio.sleep(0)
            prepared = await self._prepare(request, lists, long)
            prompts.append(self._told(prepared) if self._without_effect else prepared)
        return prompts

    def _told(self, prepared: Prepared) -> Prepared:
        """The prompt, with the parameters that the engine doesn't honour among the ignored ones.

        Raises:
            ParameterError: without one of them the answer would not be what was asked for, or ignoring is not allowed.
        """
        sampling = prepared.request.sampling
        if (grammar := sampling.grammar or prepared.answer_form) is not None and "grammar" in self._without_effect:
            raise ParameterError(f"{grammar.field or 'response_format'}: the engine has no grammars", grammar.field)
        neutral = SamplingParams(max_new_tokens=sampling.max_new_tokens)
        ignored = [name for name in self._without_effect if getattr(sampling, name) != getattr(neutral, name)]
        for name in ignored:
            if self._refuses_unknown or name == "prompt_logprobs":
                raise ParameterError(f"{name}: the engine does not have it", name)
        request = msgspec.structs.replace(
            prepared.request, ignored=tuple(sorted({*prepared.request.ignored, *ignored}))
        )
        return dataclasses.replace(prepared, request=request)

    async def _prepare(self, request: GenerateRequest, lists: WordLists, long: bool) -> Prepared:
        prompt, field = request.prompt, "inputs"
        images: AnyImages | None = None
        text: str | None
        rendered = ""
        if isinstance(prompt, Chat):
            field = "messages"
            text = rendered = await asyncio.to_thread(self.render, prompt) if long else self.render(prompt)
            request = msgspec.structs.replace(request, ignored=self._ignored(request.ignored, prompt))
            # The template has written the special tokens.
            if prompt.images:
                ids, images = await self._with_images(request, prompt, text)
            else:
                ids = await self._encode(text, field, add_special_tokens=False, truncate=request.truncate)
        elif isinstance(prompt, str):
            text = prompt
            ids = await self._encode(text, field, request.add_special_tokens, request.truncate)
        else:
            ids, text = list(prompt), None
        if images is None and request.truncate is not None and len(ids) > request.truncate:
            ids, text = ids[-request.truncate :], None
        self._check_length(len(ids), field)
        if text is None:
            self._check_ids(ids, field)  # they may be the client's: decoding one that does not exist would fail
            text = self._tokenizer.decode(ids)
        elif self._vocabulary < self._tokenizer.vocab_size:
            self._check_ids(ids, field)  # tokens were added to the tokenizer, and the model was not told
        if not ids:
            raise PayloadError(f"{field}: the tokenizer makes no tokens of this text", field)
        sampling = await self._with_ids(self._fitted(request, len(ids), field), request, lists)
        prepared = Prepared(msgspec.structs.replace(request, sampling=sampling), ids, text, self._tokenizer)
        if isinstance(prompt, Chat):
            use = prompt.tool_use
            if use is not None and use.tools and use.choice != "none":
                prepared = self._with_tools(prepared, use)
            if request.splits_reasoning and self._reasoning is not None:
                prepared = self._with_reasoning(prepared, self._reasoning, prompt, rendered)
        return dataclasses.replace(prepared, stops=await lists.stops(request.text.stop_sequences), images=images)

    async def _with_ids(self, sampling: SamplingParams, request: GenerateRequest, lists: WordLists) -> SamplingParams:
        """The sampling parameters, with the ids of what the request names by its text."""
        if banned := await lists.banned(request.bad_sequences):
            sampling = msgspec.structs.replace(sampling, bad_words_ids=sampling.bad_words_ids + banned)
        if hidden := hidden_stops(request, self._tokenizer):
            sampling = msgspec.structs.replace(sampling, stop_token_ids=sampling.stop_token_ids + hidden)
        return sampling

    async def _with_images(self, request: GenerateRequest, chat: Chat, text: str) -> tuple[list[int], AnyImages]:
        """The ids of a rendered chat, and its images."""
        if self._images is None:
            field = chat.images[0].field
            raise PayloadError(f"{field}: {self._no_images}", field)
        if is_long(text, self._longest):
            await asyncio.to_thread(self._refuse_excess, text, "messages")
        ids, images = await self._images.prepare(text, chat.images)
        if request.truncate is not None and len(ids) > request.truncate:
            field = chat.images[0].field
            raise PayloadError(
                f"{field}: a prompt with images can't be cut to {request.truncate} tokens, and this one has {len(ids)}",
                field,
            )
        return ids, images

    async def _encode(self, text: str, field: str, add_special_tokens: bool, truncate: int | None) -> list[int]:
        """The ids of a text, or at least of its end if it is to be truncated."""
        if len(text) > LONG_PROMPT_CHARS:
            return await asyncio.to_thread(self._encode_long, text, field, add_special_tokens, truncate)
        return self._tokenizer.encode(text, add_special_tokens)

    def _encode_long(self, text: str, field: str, add_special_tokens: bool, truncate: int | None) -> list[int]:
        if truncate is not None and truncate <= self._longest:
            return last_tokens(self._tokenizer, text, truncate, add_special_tokens)
        if is_long(text, self._longest):
            self._refuse_excess(text, field)
        return self._tokenizer.encode(text, add_special_tokens)

    def _refuse_excess(self, text: str, field: str) -> None:
        """Refuse a text that can't fit before it is tokenized: tokenizing it could take gigabytes."""
        self._check_length(least_tokens(self._tokenizer, text, self._longest), field, at_least=True)

    def _check_ids(self, token_ids: Iterable[int], field: str) -> None:
        wrong = next((token_id for token_id in token_ids if not 0 <= token_id < self._vocabulary), None)
        if wrong is not None:
            last = self._vocabulary - 1
            raise ParameterError(f"{field}: token id {wrong}, expected 0 to {last} (the vocabulary)", field)

    def _check_length(self, prompt_tokens: int, field: str, *, at_least: bool = False) -> None:
        if prompt_tokens >= self._context:
            raise ContextLengthError(prompt_tokens, None, self._context, field, at_least=at_least)
        if self._max_input is not None and prompt_tokens > self._max_input:
            limit, reason = self._max_input + 1, "option.max_input_tokens"
            raise ContextLengthError(prompt_tokens, None, limit, field, reason, at_least=at_least)

    def _fitted(self, request: GenerateRequest, prompt_tokens: int, field: str) -> SamplingParams:
        """The sampling parameters, with lengths limited to the context; a text that it ends has reason LENGTH."""
        sampling = request.sampling
        self._check_ids(sampling.logit_bias, "logit_bias")
        self._check_ids(sampling.stop_token_ids, "stop_token_ids")
        if request.must_fit and prompt_tokens + sampling.max_new_tokens > self._context:
            raise ContextLengthError(prompt_tokens, sampling.max_new_tokens, self._context, field)
        room = min(sampling.max_new_tokens, self._context - prompt_tokens)
        return msgspec.structs.replace(
            sampling,
            max_new_tokens=room,
            min_new_tokens=min(sampling.min_new_tokens, room),
            top_k=sampling.top_k if sampling.top_k < self._tokenizer.vocab_size else 0,
        )

    def _with_tools(self, prepared: Prepared, use: ToolUse) -> Prepared:
        """The prompt of a chat whose answer may call tools, or must."""
        request, sampling = prepared.request, prepared.request.sampling
        if use.choice == "auto":
            if self._parser is None:
                return prepared
            free = msgspec.structs.replace(sampling, grammar=None)
            return dataclasses.replace(
                prepared,
                request=msgspec.structs.replace(request, sampling=free),
                tokenizer=self._tokenizer.showing(self._parser.markers),
                new_parser=functools.partial(self._parser, use),
                answer_form=sampling.grammar,
            )
        if sampling.grammar is not None:
            raise ParameterError("tool_choice: a call is forced, and response_format wants another form", "tool_choice")
        sampling = msgspec.structs.replace(sampling, grammar=forced_calls(use))
        call_id = (self._parser or ToolParser).call_id
        return dataclasses.replace(
            prepared,
            request=msgspec.structs.replace(request, sampling=sampling),
            new_parser=functools.partial(ForcedParser, use, call_id),
        )

    def _with_reasoning(self, prepared: Prepared, parser: type[ReasoningParser], chat: Chat, rendered: str) -> Prepared:
        """The prompt of a chat whose answer may begin with reasoning, where grammars do not apply yet."""
        last = chat.messages[-1].get("content") if chat.continue_final else None
        begun = parser.begun_by(rendered, last if isinstance(last, str) else None)
        before = parser.before_grammar(begun)
        request = prepared.request
        sampling = msgspec.structs.replace(request.sampling, grammar=_after(request.sampling.grammar, before))
        return dataclasses.replace(
            prepared,
            request=msgspec.structs.replace(request, sampling=sampling),
            tokenizer=prepared.tokenizer.showing(parser.markers()),
            new_reasoning=functools.partial(parser, begun),
            answer_form=_after(prepared.answer_form, before),
        )

    def _ignored(self, known: tuple[str, ...], chat: Chat) -> tuple[str, ...]:
        """The names without effect on a chat: those already `known`, and those that the template does not read.

        `tool_prompt` is for other requests, or other models; it is no field that nobody knows.
        """
        named = set(known)
        fields = {chat.variable_fields.get(name, name) for name in chat.variables if not self._templates.reads(name)}
        if (use := chat.tool_use) is not None:
            read = self._templates.reads("tools")
            if use.choice == "auto" and not read:
                fields.add("tools")
            if use.prompt and (read or not use.forced):
                named.add("tool_prompt")
        if fields and self._refuses_unknown:
            field = min(fields)
            raise ParameterError(f"{field}: the model's chat template has no place for it", field)
        return tuple(sorted(named | fields))


def _after(grammar: Grammar | None, before: FreeText | None) -> Grammar | None:
    return None if grammar is None else msgspec.structs.replace(grammar, before=before)


def _tool_parser(tokenizer: Tokenizer, option: Options) -> type[ToolParser] | None:
    """The parser that option.tool_call_parser names, else that of the chat template's syntax; None: calls stay text."""
    if option.tool_call_parser:
        return tool_parser_class(option.tool_call_parser)
    template = "".join(tokenizer.chat_templates.values())
    name = syntax_of(template)
    if name is None and "tools" in template:
        log.info("the chat template's syntax of tool calls is not known: they stay text (option.tool_call_parser)")
    return None if name is None else tool_parser_class(name)
