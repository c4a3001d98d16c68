"""The environment of chat templates: jinja2's immutable sandbox, with limits on time and size.

Templates come with checkpoints and are untrusted: they see plain JSON values only. A template can be interrupted in
    each round of a loop and at each call. Between these points, its work is limited by the size of its values, which is
    bounded.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

#: Rounds of loops and calls between two looks at the clock: some 20 µs.
_STEPS: Final = 64
#: Characters of a text, or items of a list, that a template may work on: far more than any prompt has.
MOST_CHARS: Final = 1 << 27
#: Bits of a whole number that a power may have.
_MOST_BITS: Final = 4096
_TURN: Final = "a_turn"
_SIZED: Final = "sized"


class TemplateTimeoutError(Exception):
    """A template exceeded its time. It is not a TemplateError, because templates can catch those."""


class _Watch(threading.local):
    """How long the template that this thread renders may go on."""

    until_s: float | None = None
    steps = 0

    def step(self) -> None:
        """Note a round of a loop, or a call.

        Raises:
            TemplateTimeoutError: the time is up.
        """
        self.steps += 1
        if self.steps % _STEPS == 0 and self.until_s is not None and time.monotonic() > self.until_s:
            raise TemplateTimeoutError


_WATCH: Final = _Watch()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Templates that this thread renders are done in time, or raise TemplateTimeoutError."""
    before, _WATCH.until_s = _WATCH.until_s, time.monotonic() + seconds
    try:
        yield
    finally:
        _WATCH.until_s = before


class _Turns:
    """The items of a loop; each counts as a step."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            _WATCH.step()
            yield item

    def __len__(self) -> int:
        return len(self._items)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**"])

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # The names are jinja2's: a template may say f(self=...).
        _WATCH.step()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, Sized) and isinstance(times, int) and len(value) * times > MOST_CHARS:
                    _refuse_size()
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MOST_BITS:
                _refuse_size()
        else:
            _sized(left), _sized(right)
        return super().call_binop(context, operator, left, right)


def template_of(source: str) -> jinja2.Template:
    """A compiled template whose loops count steps. The sandbox does not see concatenations, so their size is checked
    here.

    Raises:
        jinja2.TemplateSyntaxError: it is not valid.
    """
    environment = _environment()
    tree = environment.parse(source)
    for loop in tree.find_all(jinja2.nodes.For):
        loop.iter = _filtered(loop.iter, _TURN)
    for joined in tree.find_all(jinja2.nodes.Concat):
        joined.nodes = [_filtered(node, _SIZED) for node in joined.nodes]
    return environment.from_string(tree)


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    made = jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
    made.set_environment(node.environment)
    return made


def _environment() -> jinja2.Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters[_TURN] = _Turns
    environment.filters[_SIZED] = _sized
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    environment.globals["namespace"] = _Namespace
    return environment


def _sized(value: Any) -> Any:
    """The value, if it is not too long to go on with."""
    if isinstance(value, Sized) and len(value) > MOST_CHARS:
        _refuse_size()
    return value


def _refuse_size() -> None:
    raise jinja2.exceptions.SecurityError("a value is too large")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` … `{% endgeneration %}` marks what a model wrote, for training; it has no effect here."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it an instance's)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """A namespace that refuses names with a leading underscore: they would reach into Python."""

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
    """The filter `tojson`; unlike jinja2's own, it makes no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
