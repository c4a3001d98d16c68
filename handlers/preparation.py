"""Prepares requests: renders the chat, tokenizes the text, sets up tools, checks limits.

Runs in the worker's event loop; long work is done in a thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from djl_python.config import Options
from djl_python.core.budgets import GRAMMAR_CHARS
from djl_python.core.errors import ContextLengthError, ParameterError, PayloadError, ServingError
from djl_python.core.sequence_request import AnyImages
from djl_python.core.types import (
    Chat,
    DecoderTokens,
    FreeText,
    GenerateRequest,
    Grammar,
    SamplingParams,
    ThinkingBudget,
    ToolUse,
)
from djl_python.engine.row import ALL_PARAMETERS
from djl_python.text.chat import ChatTemplates, SlowTemplateError
from djl_python.text.reasoning import ReasoningParser, reasoning_parser
from djl_python.text.tokens.long_texts import is_long, last_tokens, least_tokens
from djl_python.text.tokens.tokenizer import Tokenizer
from djl_python.text.tools.json_calls import ForcedParser
from djl_python.text.tools.parser import ToolParser, forced_calls, syntax_of, tool_parser_class

from .calls import LONG_PROMPT_CHARS
from .images.pictures import PictureReader
from .images.processor import ImageProcessor
from .languages import Languages
from .prepared import Prepared
from .word_lists import WordLists, hidden_stops

log = logging.getLogger(__name__)

#: How long a template may take for a short chat in the event loop.
LOOP_S: Final = 0.1
#: Sampling parameters that a request always has, whether its client sent them or not.
_NOT_THE_CLIENTS: Final = frozenset({"max_new_tokens", "seed"})


class Preparation:
    """Prepares the requests of one model.

    Args:
        max_model_len: the model's context, in tokens.
        images: prepares images, for a model that takes them.
        no_images: why the model takes none; the refusal of a request with images says it.
        decoder: of an encoder-decoder model, whose encoder then reads prompts of as many tokens as the context has.
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
        decoder: DecoderTokens | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._images = images
        self._no_images = no_images
        self._templates = ChatTemplates(tokenizer.chat_templates, tokenizer.special_tokens)
        for reason in self._templates.broken:
            log.warning("%s: chats are refused", reason)
        self._renders_slowly = False  # a short chat has taken long
        self._parser = _tool_parser(tokenizer, option)
        self._reasoning = reasoning_parser(
            option.enable_reasoning, option.reasoning_parser, tokenizer.chat_templates.values()
        )
        self._refuses_unknown = option.unknown_parameters == "error"
        self._vocabulary = min(tokenizer.vocab_size, vocabulary or tokenizer.vocab_size)
        self._context = max_model_len
        self._languages = Languages(tokenizer, decoder, refuses_unknown=self._refuses_unknown)
        # What an encoder reads has no log-probabilities.
        parameters = parameters if decoder is None else parameters - {"prompt_logprobs"}
        self._without_effect = tuple(sorted(ALL_PARAMETERS - parameters - _NOT_THE_CLIENTS))
        self._max_input = option.max_input_tokens
        self._most_prompt = max_model_len - 1 if decoder is None else max_model_len
        self._longest = min(self._most_prompt, self._max_input or max_model_len)  # most tokens of a prompt

    def render(self, chat: Chat) -> str:
        """The prompt text that the model's chat template makes of a chat.

        Raises:
            PayloadError: the model has no template, or the template refuses these messages.
        """
        return self._templates.render(chat)

    async def _render(self, chat: Chat, *, long: bool) -> str:
        """`render`, in a thread where that takes long: for a long chat, or a slow template."""
        if not (long or self._renders_slowly):
            try:
                return self._templates.render(chat, LOOP_S)
            except SlowTemplateError:
                self._renders_slowly = True
        return await asyncio.to_thread(self.render, chat)

    async def prepare(
        self,
        requests: Sequence[GenerateRequest],
        *,
        long: bool,
        on_refusal: Callable[[int, ServingError], None] | None = None,
    ) -> list[Prepared]:
        """Prepare a client's request, one prompt after the other; the loop's other work runs between them.

        Args:
            long: whether it may take long to render its chat.
            on_refusal: called with the index of a refused prompt, and the reason; None: the first refusal is raised.

        Raises:
            PayloadError: the prompt is empty, an image is not valid, or the template refuses the chat.
            ParameterError: prompt and answer do not fit the model, or parameters contradict each other.
            ServingError: every prompt was refused; the first refusal.
        """
        _refuse_grammars(requests)
        lists = WordLists(self._tokenizer)
        prompts: list[Prepared] = []
        refusal: ServingError | None = None
        number = 0
        for index, request in enumerate(requests):
            if index:
                await asyncio.sleep(0)
            try:
                prepared = await self._prepare(request, lists, long)
                prepared = self._with_remarks(prepared) if self._without_effect else prepared
                prompts.append(dataclasses.replace(prepared, index=index, number=number))
            except ServingError as error:
                if on_refusal is None:
                    raise
                on_refusal(index, error)
                refusal = refusal or error
            number += request.branching.n
        if refusal is not None and not prompts:
            raise refusal
        return prompts

    def _with_remarks(self, prepared: Prepared) -> Prepared:
        """The prompt, with the parameters that the engine doesn't honour among the ignored ones.

        Raises:
            ParameterError: one of them would change the answer, or ignoring is not allowed.
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
        request = self._languages.taken(request)
        prompt, field = request.prompt, "inputs"
        images: AnyImages | None = None
        text: str | None
        rendered = ""
        if isinstance(prompt, Chat):
            field = "messages"
            text = rendered = await self._render(prompt, long=long)
            ignored = self._ignored(request.ignored, prompt, request.thinking_budget)
            request = msgspec.structs.replace(request, ignored=ignored)
            # The template has written the special tokens.
            if prompt.images:
                ids, images = await self._with_images(request, prompt, text)
            else:
                ids = await self._encode(text, field, add_special_tokens=False, truncate=request.truncate)
        elif isinstance(prompt, str):
            text = prompt
            ids = await self._encode(text, field, request.add_special_tokens, request.truncate)
            ids = self._languages.written(ids, request)
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
        encoder_ids, ids, decoder = self._languages.parted(ids, request)
        sampling = await self._with_ids(self._fitted(request, len(ids), field), request, lists)
        prepared = Prepared(
            msgspec.structs.replace(request, sampling=sampling), ids, text, self._tokenizer,
            encoder_ids=encoder_ids, decoder=decoder,
        )  # fmt: skip
        if isinstance(prompt, Chat):
            use = prompt.tool_use
            if use is not None and use.tools and use.choice != "none":
                if long:
                    prepared = await asyncio.to_thread(self._with_tools, prepared, use)
                else:
                    prepared = self._with_tools(prepared, use)
            if request.splits_reasoning and self._reasoning is not None:
                prepared = self._with_reasoning(prepared, self._reasoning, prompt, rendered)
        return dataclasses.replace(prepared, stops=await lists.stops(request.text.stop_sequences), images=images)

    async def _with_ids(self, sampling: SamplingParams, request: GenerateRequest, lists: WordLists) -> SamplingParams:
        """The sampling parameters, with the ids of words that the request names as text."""
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
        """The ids of a text; if it is to be truncated, at least those of its end."""
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
        """Refuse a text that can't fit, before it is tokenized, which could take gigabytes."""
        self._check_length(least_tokens(self._tokenizer, text, self._longest), field, at_least=True)

    def _check_ids(self, token_ids: Iterable[int], field: str) -> None:
        wrong = next((token_id for token_id in token_ids if not 0 <= token_id < self._vocabulary), None)
        if wrong is not None:
            last = self._vocabulary - 1
            raise ParameterError(f"{field}: token id {wrong}, expected 0 to {last} (the vocabulary)", field)

    def _check_length(self, prompt_tokens: int, field: str, *, at_least: bool = False) -> None:
        if prompt_tokens > self._most_prompt:
            raise ContextLengthError(prompt_tokens, None, self._most_prompt + 1, field, at_least=at_least)
        if self._max_input is not None and prompt_tokens > self._max_input:
            limit, reason = self._max_input + 1, "option.max_input_tokens"
            raise ContextLengthError(prompt_tokens, None, limit, field, reason, at_least=at_least)

    def _fitted(self, request: GenerateRequest, prompt_tokens: int, field: str) -> SamplingParams:
        """The sampling parameters, with lengths limited to the context; a text that it ends has reason LENGTH.

        Args:
            prompt_tokens: that the model goes on from.
        """
        sampling = request.sampling
        self._check_ids(sampling.logit_bias, "logit_bias")
        self._check_ids(sampling.stop_token_ids, "stop_token_ids")
        if request.translation is not None and (first := request.translation.forced_bos_token_id) is not None:
            self._check_ids((first,), "forced_bos_token_id")
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
        mark: tuple[int, ...] = ()
        if request.thinking_budget is not None:
            mark = tuple(self._tokenizer.encode(parser.ends[0], add_special_tokens=False))
        sampling = msgspec.structs.replace(request.sampling, grammar=_after(request.sampling.grammar, before))
        return dataclasses.replace(
            prepared,
            request=msgspec.structs.replace(request, sampling=sampling),
            tokenizer=prepared.tokenizer.showing(parser.markers()),
            new_reasoning=functools.partial(parser, begun),
            answer_form=_after(prepared.answer_form, before),
            closing_mark=mark,
        )

    def _ignored(self, known: tuple[str, ...], chat: Chat, budget: ThinkingBudget | None) -> tuple[str, ...]:
        """The names without effect on a chat: those already `known`, and those that the template does not read.

        `tool_prompt` is a known field that has no effect on this request or model.
        """
        named = set(known)  # at most `IGNORED_NAMES`
        # A field may stand for several variables; a template reads the one that it knows.
        field_of = {name: chat.variable_fields.get(name, name) for name in chat.variables}
        fields = set(field_of.values())
        effective = {field for name, field in field_of.items() if self._templates.reads(name)}
        if budget is not None:
            (fields if self._reasoning is None else effective).add(budget.field)
        fields -= effective
        if (use := chat.tool_use) is not None:
            read = self._templates.reads("tools")
            if use.choice == "auto" and not read:
                fields.add("tools")
            if use.prompt and (read or not use.forced):
                named.add("tool_prompt")
        if fields and self._refuses_unknown:
            field = min(fields)
            raise ParameterError(f"{field}: this model's chats have no place for it", field)
        return tuple(sorted(named | fields))


def _refuse_grammars(requests: Sequence[GenerateRequest]) -> None:
    """Refuse grammars that are too long for so many sequences: each sends its own copy to the engine."""
    asked = [
        (request.sampling.grammar, request.branching) for request in requests if request.sampling.grammar is not None
    ]
    chars = sum(len(grammar.source) * max(branching.n, branching.best_of) for grammar, branching in asked)
    if wrong := GRAMMAR_CHARS.excess(chars):
        field = asked[0][0].field
        raise ParameterError(f"{field or 'grammar'}: {wrong}", field)


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
