"""Chat templates: messages in, prompt text out, as transformers renders them but without it.

Runs in the worker: in its event loop, or in a thread where that takes long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jinja2

from ..core.errors import ModelLoadError, PayloadError
from ..core.types import Chat
from .template_environment import TemplateTimeoutError, template_of, time_limit
from .tools.prompt import with_tools
from .well_formed import well_formed

#: Names of a message's reasoning; templates read the first (gpt-oss's the second).
_REASONING = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "
_SHOWN = "a text to be found again"
#: How long a template may take for a chat, and for the few words on which it is tried when it is loaded. A chat of
#: 10,000 messages takes most templates half a second.
RENDER_S: Final = 10.0
TRIAL_S: Final = 1.0


#: Roles that every template is given as they are, and those that are others under older or newer names, where the
#: template does not know these.
_ROLES: Final = frozenset({"system", "user", "assistant", "tool", "developer", "function"})
_ALIASES: Final = {"developer": "system", "function": "tool"}
#: For how many other roles a template's treatment is remembered.
_ROLES_KNOWN: Final = 64


class SlowTemplateError(PayloadError):
    """A template did not render a chat in time."""


class _CallForm(NamedTuple):
    """How a template reads messages with tool calls.

    Attributes:
        text_arguments: arguments are JSON as text, not objects.
        null_content: whether empty content is null instead of "".
    """

    text_arguments: bool = False
    null_content: bool = False


#: Most templates read the first form; DeepSeek's read one of the others.
_CALL_FORMS = tuple(_CallForm(text, null) for null in (False, True) for text in (False, True))


class ChatTemplates:
    """A model's templates by name; "default" is the usual one, "tool_use" is for chats with tools.

    An invalid template fails the chats that need it, not the loading of the model.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str] | None = None) -> None:
        self._templates: dict[str, ChatTemplate] = {}
        self._broken: dict[str, str] = {}
        self._names = frozenset(name for source in sources.values() for name in re.findall(r"\w+", source))
        for name, source in sources.items():
            try:
                self._templates[name] = ChatTemplate(source, special_tokens)
            except ModelLoadError as exc:
                self._broken[name] = exc.message

    @property
    def broken(self) -> Sequence[str]:
        """The errors of the invalid templates."""
        return tuple(self._broken.values())

    def reads(self, name: str) -> bool:
        """Whether any template contains this name."""
        return name in self._names

    def render(self, chat: Chat, limit_s: float = RENDER_S) -> str:
        """The prompt of a chat; the template gets the tools unless their choice is "none".

        A template without a place for tools gets those of a forced call in a message.

        Args:
            limit_s: how long that may take.

        Raises:
            PayloadError: the model has no template for the chat, or the template refuses these messages.
            SlowTemplateError: the template is not done in time.
        """
        use = chat.tool_use
        tools = None if use is None or use.choice == "none" or not use.tools else use.tools
        messages: Sequence[Mapping[str, Any]] = chat.messages
        if use is not None and use.forced and not self.reads("tools"):
            messages = with_tools(messages, use)
        return self._find(has_tools=tools is not None).render(
            messages,
            tools=tools,
            add_generation_prompt=chat.add_generation_prompt and not chat.continue_final,
            continue_final_message=chat.continue_final,
            variables=chat.variables,
            limit_s=limit_s,
        )

    def _find(self, *, has_tools: bool) -> ChatTemplate:
        name = "tool_use" if has_tools and "tool_use" in self._templates else "default"
        if name not in self._templates and name not in self._broken and len(self._templates) == 1:
            (name,) = self._templates
        if name in self._templates:
            return self._templates[name]
        if name in self._broken:
            raise PayloadError(self._broken[name], "messages")
        if not self._templates:
            raise PayloadError(
                "messages: this model has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json): send it a text instead",
                "messages",
            )
        names = ", ".join(sorted(self._templates))
        raise PayloadError(f"messages: this model has no default chat template, only {names}", "messages")


class ChatTemplate:
    """A compiled template.

    Args:
        source: the jinja text.
        special_tokens: `bos_token`, `eos_token` … which templates may name.

    Raises:
        ModelLoadError: the template is not valid jinja, or takes too long for a few words.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self._special_tokens = dict(special_tokens or {})
        self._source = source
        self._aliases = {role: other for role, other in _ALIASES.items() if not _names_role(source, role)}
        self._left_out: dict[str, bool] = {}
        try:
            self._template = template_of(source)
        except jinja2.TemplateSyntaxError as exc:
            raise ModelLoadError(f"the chat template is not valid: line {exc.lineno}: {exc.message}") from exc
        try:
            self._read(source)
        except SlowTemplateError as exc:
            raise ModelLoadError(f"the chat template takes more than {TRIAL_S:g} s for a few words") from exc

    def _read(self, source: str) -> None:
        """Find out how the template reads messages."""
        self._reads_parts, self._call_form, self._tools_in_message = False, _CallForm(), False
        self._reads_parts = not self._shows_content(_SHOWN) and self._shows_content(_parts(_SHOWN))
        self._call_form = next(filter(self._shows_call, _CALL_FORMS), _CallForm())
        self._tools_in_message = "tools" in source and self._shows_tools_of_a_message()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        limit_s: float = RENDER_S,
    ) -> str:
        """The prompt. It already has its special tokens: tokenize it with add_special_tokens=False.

        `continue_final_message` leaves the last message open, for the model to continue. `variables` are further names
        for the template (`enable_thinking`, `documents` …).

        Raises:
            PayloadError: the template refuses these messages, or fails on them; has the template's own message.
            SlowTemplateError: it takes more than `limit_s`.
        """
        for i, message in enumerate(messages):
            if (role := str(message.get("role"))) not in _ROLES and self._leaves_out(role):
                raise PayloadError(
                    f"messages[{i}].role: this model's chat template leaves out messages of role {json.dumps(role)}",
                    f"messages[{i}].role",
                )
        return self._render(
            messages, tools, add_generation_prompt, continue_final_message, variables or {}, limit_s=limit_s
        )

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = MappingProxyType({}),
        *,
        limit_s: float,
    ) -> str:
        plain = [self._plain(message, f"messages[{i}]") for i, message in enumerate(messages)]
        if continue_final_message:
            if not plain or not isinstance(plain[-1].get("content"), str):
                raise PayloadError("messages: the last one has no text to continue", "messages")
            plain[-1]["content"] += _CONTINUE_HERE
        if tools and self._tools_in_message:
            plain = _with_tools(plain, tools)
        if self._reads_parts:
            plain = [_with_parts(message) for message in plain]
        try:
            with time_limit(limit_s):
                text = self._template.render(
                    {
                        **self._special_tokens,
                        "documents": None,
                        **variables,
                        "messages": plain,
                        "tools": None if tools is None else list(tools),
                        "add_generation_prompt": add_generation_prompt,
                    }
                )
        except TemplateTimeoutError as exc:
            why = f"the chat template takes more than {limit_s:g} s on these messages"
            raise SlowTemplateError(why, "messages") from exc
        except jinja2.TemplateError as exc:
            raise PayloadError(f"the chat template refuses these messages: {exc.message}", "messages") from exc
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as exc:
            # The template's code failed on unexpected values.
            raise PayloadError(f"the chat template fails on these messages: {exc}", "messages") from exc
        text = well_formed(text)
        return _open_ended(text) if continue_final_message else text

    def _plain(self, message: Mapping[str, Any], path: str) -> dict[str, Any]:
        """A message as the template reads it."""
        plain = _with_reasoning(dict(message))
        plain["role"] = self._aliases.get(str(plain.get("role")), plain.get("role"))
        if not plain.get("tool_calls"):
            return plain
        if self._call_form.null_content and not plain.get("content"):
            plain["content"] = None
        return plain if self._call_form.text_arguments else _with_objects(plain, path)

    def _shows_tools_of_a_message(self) -> bool:
        """Whether the template reads tools where Phi-4-mini's does, in the system message as text, and only there."""
        self._tools_in_message = False
        if _SHOWN not in self._rendered({"role": "system", "content": "", "tools": _SHOWN}):
            return False
        tool = {"type": "function", "function": {"name": _SHOWN, "description": "x", "parameters": {}}}
        return _SHOWN not in self._rendered({"role": "user", "content": "x"}, tools=[tool])

    def _shows_content(self, content: str | list[dict[str, str]]) -> bool:
        """Whether the rendered text contains this content of a message.

        Models that take images may have templates that only know lists of parts, and leave out a plain text.
        """
        return _SHOWN in self._rendered({"role": "user", "content": content})

    def _leaves_out(self, role: str) -> bool:
        """Whether the template renders messages of a role without their content."""
        if (known := self._left_out.get(role)) is not None:
            return known
        message, asked = {"role": role, "content": _SHOWN}, {"role": "user", "content": "x"}
        texts = [text for text in (self._rendered(message), self._rendered(asked, message)) if text]
        if len(self._left_out) >= _ROLES_KNOWN:
            self._left_out.clear()
        # If it refuses both, it may still take the role in another place; a role that it names is left to it.
        unseen = bool(texts) and not any(_SHOWN in text for text in texts)
        self._left_out[role] = unseen and not _names_role(self._source, role)
        return self._left_out[role]

    def _shows_call(self, form: _CallForm) -> bool:
        """Whether the rendered text contains the arguments of a tool call in this form, and not as Python writes them.

        Templates may fail on arguments that are objects, or look for calls only where content is null.
        """
        self._call_form = form
        arguments = {"x": _SHOWN}
        call = {"id": "000000000", "type": "function", "function": {"name": "f", "arguments": json.dumps(arguments)}}
        asked, called = {"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}
        text = self._rendered(asked, called)
        return _SHOWN in text and str(arguments) not in text

    def _rendered(self, *messages: dict[str, Any], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The rendered text; "" if the template refuses the messages.

        Raises:
            SlowTemplateError: it is not done in time.
        """
        try:
            return self._render(messages, tools, limit_s=TRIAL_S)
        except SlowTemplateError:
            raise
        except PayloadError:
            return ""


def _names_role(source: str, role: str) -> bool:
    """Whether a template compares the roles of messages with this one."""
    return re.search(rf"""\brole\b['"\])]*\s*(?:==|in)\s*[^%}}]*['"]{re.escape(role)}['"]""", source) is not None


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages, the first of which is the system's and has the tools' functions as JSON."""
    shown = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if not messages or messages[0].get("role") != "system":
        messages = [{"role": "system", "content": ""}, *messages]
    return [{**messages[0], "tools": shown}, *messages[1:]]


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": _parts(content)} if isinstance(content, str) else message


def _open_ended(text: str) -> str:
    """The text up to the point where the model continues the last message."""
    at = text.rfind(_CONTINUE_HERE.strip())
    if at < 0:
        raise PayloadError("messages: the chat template leaves the last message out: it can't be continued", "messages")
    # If the tag's trailing space is gone, the template trims messages: then the message's own space goes too.
    return text[:at] if text.startswith(_CONTINUE_HERE, at) else text[:at].rstrip()


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _with_objects(message: dict[str, Any], path: str) -> dict[str, Any]:
    """The message with its tool calls' arguments as objects, which most templates expect; OpenAI's are JSON strings."""
    calls = enumerate(message["tool_calls"])
    return {**message, "tool_calls": [_with_object(call, f"{path}.tool_calls[{i}]") for i, call in calls]}


def _with_object(call: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call  # not JSON, as a model once wrote it: the template gets it unchanged
    except RecursionError as exc:
        field = f"{path}.function.arguments"
        raise PayloadError(f"{field}: nested too deeply", field) from exc
    return {**call, "function": {**function, "arguments": arguments}}
