"""Separates reasoning from content in a generated text, by the marks of the model's family.

Runs in the worker, for chats. A `ReasoningParser` takes one generation's text in pieces and separates reasoning from
content; `reasoning_parser` finds the parser of a model. Reasoning comes first or not at all. White space beside the
marks belongs to them: models write line breaks there.

Sources: vLLM's documentation of reasoning outputs, whose names these are, and the models' chat templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from ..core.errors import ConfigError
from ..core.registry import load_object, path_of
from ..core.types import FreeText

#: option.reasoning_parser -> the class of the parser.
REASONING_PARSERS: Final = {
    **dict.fromkeys(
        "deepseek_r1 holo2 kimi_k2 minimax_m2 nemotron_v3 step3 step3p5".split(),
        "djl_python.text.reasoning:ImpliedThinkParser",
    ),
    **dict.fromkeys("deepseek_v3 glm45 glm47 olmo3 qwen3".split(), "djl_python.text.reasoning:ThinkParser"),
    "cohere_command3": "djl_python.text.reasoning:CohereParser",
    "ernie45": "djl_python.text.reasoning:Ernie45Parser",
    "granite": "djl_python.text.reasoning:GraniteParser",
    "hunyuan_a13b": "djl_python.text.reasoning:HunyuanParser",
    "mistral": "djl_python.text.reasoning:MistralParser",
    "seed_oss": "djl_python.text.reasoning:SeedOssParser",
}
_OPTION: Final = "option.reasoning_parser"
#: A text in a chat template -> the parser of its model. The first text found counts.
_SIGNS: Final = (
    ("<seed:think>", "seed_oss"),
    ("[THINK]", "mistral"),
    ("Here is my thought process:", "granite"),
    ("<|START_THINKING|>", "cohere_command3"),
    ("<response>", "ernie45"),
    ("<answer>", "hunyuan_a13b"),
    ("</think>", "qwen3"),
)


class SplitText(NamedTuple):
    """The reasoning and content of a piece of text."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Parses one generation; a subclass defines the marks. Users' parsers (`option.reasoning_parser`) derive from it
    too.

    Args:
        begun: whether the prompt has begun the reasoning, which then has no mark of its own (True), has ended it, so
            that there is none (False), or neither (None).

    Attributes:
        reasons: whether this is, or may still become, reasoning.
        reasoned: whether there was reasoning, even empty.
    """

    starts: ClassVar[tuple[str, ...]]
    ends: ClassVar[tuple[str, ...]]
    #: Marks that end the reasoning and belong to the content.
    unmarked_ends: ClassVar[tuple[str, ...]] = ()
    #: Whether a text without a mark at its beginning is reasoning.
    implied: ClassVar[bool] = False
    #: Marks that may surround the content.
    around: ClassVar[tuple[str, str] | None] = None

    def __init__(self, begun: bool | None) -> None:
        self._implied = self.implied if begun is None else begun
        self.reasons, self.reasoned = begun is not False, False
        self._text = self._space = ""
        self._state: Callable[[], SplitText] = self._begin if self.reasons else self._content
        self._next = self._state

    @classmethod
    def markers(cls) -> tuple[str, ...]:
        """Special tokens that are part of the syntax: they are decoded even if special tokens are skipped."""
        return cls.starts + cls.ends + cls.unmarked_ends + (cls.around or ())

    @classmethod
    def begun_by(cls, prompt: str, continued: str | None = None) -> bool | None:
        """Whether a rendered chat begins or ends the reasoning of its answer (`begun`).

        Args:
            continued: the last message, which the answer continues.
        """
        if continued is not None and continued.strip():
            last = max(continued.rfind(mark) for mark in cls.starts)
            return last >= 0 and last > max(continued.rfind(mark) for mark in cls.ends)
        prompt = prompt.rstrip()
        return False if prompt.endswith(cls.ends) else True if prompt.endswith(cls.starts) else None

    @classmethod
    def before_grammar(cls, begun: bool | None) -> FreeText | None:
        """The text that may come before the content, to which a grammar applies; None: nothing."""
        if begun is False:
            return None
        return FreeText(cls.starts, cls.ends, begun=cls.implied if begun is None else begun)

    def feed(self, text: str) -> SplitText:
        """Parse the next piece. How a text is cut into pieces makes no difference to the overall result."""
        self._text += text
        return self._state()

    def finish(self, *, cut: bool = False) -> SplitText:
        """End the text; returns the text that was held back.

        Args:
            cut: whether a limit ended it. Then an incomplete opening mark is not content.
        """
        rest, self._text = self._space + self._text, ""
        if self._state == self._begin:
            self.reasons = self.reasoned = self._implied
            if cut and rest.strip():
                return SplitText()
        return SplitText(reasoning=rest) if self.reasons else SplitText(content=rest)

    # ------------------------------------------------------------------------------------ states

    def _begin(self) -> SplitText:
        text = self._text.lstrip()
        if start := next((mark for mark in self.starts if text.startswith(mark)), ""):
            self._text = text.removeprefix(start)
        elif any(mark.startswith(text) for mark in self.starts):
            return SplitText()
        elif not self._implied:
            self.reasons, self._state = False, self._content
            return self._state()
        self.reasoned = True
        return self._after_space(self._reasoning)

    def _reasoning(self) -> SplitText:
        at, mark = _first(self._text, self.ends + self.unmarked_ends)
        if not mark:
            return SplitText(reasoning=self._before(at))
        reasoning = (self._space + self._text[:at]).rstrip()
        self._text = self._text[at if mark in self.unmarked_ends else at + len(mark) :]
        self._space, self.reasons = "", False
        return SplitText(reasoning, self._after_space(self._content_begins).content)

    def _content_begins(self) -> SplitText:
        opening = "" if self.around is None else self.around[0]
        if opening and self._text.startswith(opening):
            self._text = self._text.removeprefix(opening)
            return self._after_space(self._content)
        if opening.startswith(self._text):
            return SplitText()
        self._state = self._content
        return self._state()

    def _content(self) -> SplitText:
        if self.around is None:
            text, self._text = self._text, ""
            return SplitText(content=text)
        at, mark = _first(self._text, self.around[1:])
        if not mark:
            return SplitText(content=self._before(at))
        content = (self._space + self._text[:at]).rstrip()
        self._text, self._space = self._text[at + len(mark) :], ""
        return SplitText(content=content + self._after_space(self._content).content)

    def _skip_space(self) -> SplitText:
        self._text = self._text.lstrip()
        if not self._text:
            return SplitText()
        self._state = self._next
        return self._state()

    # ------------------------------------------------------------------------------------ shared by the states

    def _after_space(self, state: Callable[[], SplitText]) -> SplitText:
        """Skip white space, and go to a state."""
        self._next, self._state = state, self._skip_space
        return self._state()

    def _before(self, at: int) -> str:
        """Take the first `at` characters, without white space at their end: a mark may follow it."""
        text, self._text = self._space + self._text[:at], self._text[at:]
        visible = text.rstrip()
        self._space = text[len(visible) :]
        return visible


class ThinkParser(ReasoningParser):
    """`<think>` reasoning `</think>` content. Qwen 3, GLM 4.5 and many others.

    Qwen 3.5 has been seen to call a tool without ending its reasoning.
    """

    starts, ends = ("<think>",), ("</think>",)
    unmarked_ends = ("<tool_call>\n<function=",)


class ImpliedThinkParser(ReasoningParser):
    """`<think>` reasoning `</think>` content, where `<think>` may be missing. DeepSeek R1, MiniMax M2.

    Kimi K2 calls tools without ending its reasoning.
    """

    starts, ends, implied = ("<think>",), ("</think>",), True
    unmarked_ends = ("<|tool_calls_section_begin|>",)


class SeedOssParser(ReasoningParser):
    """`<seed:think>` reasoning `</seed:think>` content."""

    starts, ends = ("<seed:think>",), ("</seed:think>",)


class MistralParser(ReasoningParser):
    """`[THINK]` reasoning `[/THINK]` content. Magistral."""

    starts, ends = ("[THINK]",), ("[/THINK]",)


class GraniteParser(ReasoningParser):
    """Two sentences in place of marks. Granite 3.2."""

    starts = ("Here is my thought process:", "Here's my thought process:")
    ends = ("Here is my response:", "Here's my response:")


class HunyuanParser(ThinkParser):
    """`<think>` reasoning `</think>`, `<answer>` content `</answer>`. Hunyuan A13B."""

    around = ("<answer>", "</answer>")


class Ernie45Parser(ImpliedThinkParser):
    """Reasoning `</think>`, `<response>` content `</response>`; the latter two marks may be missing. Ernie 4.5."""

    around = ("<response>", "</response>")


class CohereParser(ReasoningParser):
    """`<|START_THINKING|>` reasoning `<|END_THINKING|>`, `<|START_RESPONSE|>` content. Command A Reasoning."""

    starts, ends = ("<|START_THINKING|>",), ("<|END_THINKING|>",)
    around = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")


def reasoning_parser(enabled: bool | None, name: str, templates: Iterable[str]) -> type[ReasoningParser] | None:
    """The parser of a model; None: its reasoning stays part of the content.

    Args:
        enabled: option.enable_reasoning.
        name: option.reasoning_parser, which alone switches it on, as in current LMI; "": the chat templates say.

    Raises:
        ConfigError: there is no such parser, or reasoning is switched on and its marks are unknown.
    """
    if not (name if enabled is None else enabled):
        return None
    if name:
        parser: Any = load_object(reasoning_parser_path(name))
        return parser  # type: ignore[no-any-return]
    template = "".join(templates)
    if (parser_name := next((name for sign, name in _SIGNS if sign in template), None)) is None:
        known = ", ".join(sorted(REASONING_PARSERS))
        raise ConfigError(
            f"option.enable_reasoning: the chat template does not tell how reasoning is marked; set {_OPTION} to one "
            f"of {known}, or module:Class"
        )
    return reasoning_parser(True, parser_name, ())


def reasoning_parser_path(name: str) -> str:
    """The "module:attribute" of a parser, without importing it.

    Raises:
        ConfigError: the name is neither known nor such a path itself; the message lists those that are known.
    """
    return path_of(REASONING_PARSERS, name, _OPTION)


def _first(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """Where the first of `marks` is, and which; else where the beginning of one is, at the end of the text, and ""."""
    places = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    return min(places, default=(len(text) - max(_overlap(text, mark) for mark in marks), ""))


def _overlap(text: str, mark: str) -> int:
    """How many of the last characters of `text` are the beginning of `mark`."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
