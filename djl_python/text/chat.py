"""Chat templates: messages in, prompt text out, as transformers renders them but without it.

Runs in the worker. Templates come with checkpoints and are untrusted: they run in jinja2's immutable sandbox and see
plain JSON values only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from ..errors import ModelLoadError, PayloadError

#: Names that a message's reasoning comes under; templates read the first (gpt-oss the second).
_REASONING = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """A compiled template.

    Args:
        source: the jinja text.
        special_tokens: `bos_token`, `eos_token` … which templates may name.

    Raises:
        ModelLoadError: the template is not valid jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as exc:
            raise ModelLoadError(f"the chat template is not valid: line {exc.lineno}: {exc.message}") from exc

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. It has its special tokens already: tokenize it with add_special_tokens=False.

        `continue_final_message` leaves the last message open, for the model to go on with it. `variables` are further
        names for the template (`enable_thinking` …).

        Raises:
            PayloadError: the template refuses these messages; says what it says.
        """
        plain = [_with_reasoning(dict(message)) for message in messages]
        if continue_final_message:
            if not plain or not isinstance(plain[-1].get("content"), str):
                raise PayloadError("messages: the last one has no text to continue", "messages")
            plain[-1]["content"] += _CONTINUE_HERE
        try:
            text = self._template.render(
                {
                    **self._special_tokens,
                    **(variables or {}),
                    "messages": plain,
                    "tools": None if tools is None else list(tools),
                    "documents": None if documents is None else list(documents),
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except jinja2.TemplateError as exc:
            raise PayloadError(f"the chat template refuses these messages: {exc.message}", "messages") from exc
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as exc:
            # Template code meets values it was not written for.
            raise PayloadError(f"the chat template fails on these messages: {exc}", "messages") from exc
        return _open_ended(text) if continue_final_message else text


def _open_ended(text: str) -> str:
    """The text up to where the last message goes on."""
    at = text.rfind(_CONTINUE_HERE.strip())
    if at < 0:
        raise PayloadError("messages: the chat template leaves the last message out: it can't be continued", "messages")
    # A template that trims messages has taken the tag's space, and then the message's own must go too.
    return text[:at] if text.startswith(_CONTINUE_HERE, at) else text[:at].rstrip()


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    found = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` … `{% endgeneration %}` marks what a model wrote, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it an instance's)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without names that begin with an underscore: they would reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # `self` is positional only, so that a template may say namespace(self=...).
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        jinja2.utils.Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't have the name {name!r}")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Unlike jinja2's own: no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    environment.globals["namespace"] = _Namespace
    return environment
