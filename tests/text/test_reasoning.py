"""Reasoning is told apart from content in every family's marks, however the text is cut."""

from __future__ import annotations

import pytest

from djl_python.core.errors import ConfigError
from djl_python.core.types import FreeText
from djl_python.text.reasoning import (
    REASONING_PARSERS,
    ReasoningParser,
    SplitText,
    reasoning_parser,
    reasoning_parser_path,
)


class Shouting(ReasoningParser):
    """A user's own."""

    starts, ends = ("HM",), ("AH", "OH")


def parser_of(name: str) -> type[ReasoningParser]:
    parser = reasoning_parser(None, name, ())
    assert parser is not None
    return parser


def split(parser: ReasoningParser, *pieces: str) -> tuple[str, str]:
    parts = [*map(parser.feed, pieces), parser.finish()]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


#: (parser, begun by the prompt, text, reasoning, content)
SPLIT = [
    ("qwen3", None, "<think>\nHm. Well.\n</think>\n\nYes, <b>.", "Hm. Well.", "Yes, <b>."),
    ("qwen3", None, "Yes </think> <think>no</think>", "", "Yes </think> <think>no</think>"),
    ("qwen3", None, " \n Yes <th", "", " \n Yes <th"),
    ("qwen3", None, "\n <think>a < b</thin> \n c</think>d</think>", "a < b</thin> \n c", "d</think>"),
    ("qwen3", None, "<think>\n\n</think>\n\nYes", "", "Yes"),
    ("qwen3", None, "<thi", "", "<thi"),
    ("qwen3", None, "<think>Hm \n ", "Hm \n ", ""),
    ("qwen3", None, "<think>Hm</thi", "Hm</thi", ""),
    ("qwen3", None, "<think>Hm</think> \n", "Hm", ""),
    ("qwen3", None, "", "", ""),
    ("qwen3", True, "Hm\n</think>\n\nYes", "Hm", "Yes"),
    ("qwen3", True, "<think>Hm</think>Yes", "Hm", "Yes"),
    ("qwen3", True, "Hm", "Hm", ""),
    ("qwen3", False, "<think>Hm</think> Yes", "", "<think>Hm</think> Yes"),
    ("qwen3", True, "Hm <tool_call>\nx <tool_call>\n<function=f>", "Hm <tool_call>\nx", "<tool_call>\n<function=f>"),
    ("deepseek_r1", None, "Hm\n</think>\n\nYes", "Hm", "Yes"),
    ("deepseek_r1", None, "<think>\nHm\n</think>\n\nYes", "Hm", "Yes"),
    ("deepseek_r1", None, "Hm", "Hm", ""),
    ("deepseek_r1", None, "<thi", "<thi", ""),
    ("deepseek_r1", False, "Yes", "", "Yes"),
    ("kimi_k2", None, "Hm<|tool_calls_section_begin|>f", "Hm", "<|tool_calls_section_begin|>f"),
    ("seed_oss", None, "<seed:think>Hm</think></seed:think>Yes", "Hm</think>", "Yes"),
    ("mistral", None, "[THINK]Hm [[/THINK]Yes", "Hm [", "Yes"),
    (
        "granite",
        None,
        "Here's my thought process: Here is my view. Here is my response: Yes",
        "Here is my view.",
        "Yes",
    ),
    ("granite", None, "Here is my view", "", "Here is my view"),
    ("granite", None, "Here is my", "", "Here is my"),
    ("hunyuan_a13b", None, "<think>\nHm\n</think>\n<answer>\nYes </b>\n\n</answer>", "Hm", "Yes </b>"),
    ("hunyuan_a13b", None, "<think>Hm</think> <ans", "Hm", "<ans"),
    ("hunyuan_a13b", None, "<think>Hm</think><answer>\nYes \n</ans", "Hm", "Yes \n</ans"),
    ("hunyuan_a13b", None, "<think>Hm</think>Yes</answer>\n more", "Hm", "Yesmore"),
    ("ernie45", None, "Hm\n</think>\n\n<response>\nYes\n</response>\n", "Hm", "Yes"),
    ("ernie45", None, "Hm\n</think>\nYes", "Hm", "Yes"),
    ("cohere_command3", None, "<|START_THINKING|>Hm<|END_THINKING|><|START_RESPONSE|>Yes<|END_RESPONSE|>", "Hm", "Yes"),
    (f"{__name__}:Shouting", None, "HM so OH yes AH", "so", "yes AH"),
]


@pytest.mark.parametrize(("name", "begun", "text", "reasoning", "content"), SPLIT)
def test_a_text_is_split_however_it_is_cut(
    name: str, begun: bool | None, text: str, reasoning: str, content: str
) -> None:
    made = parser_of(name)
    assert split(made(begun), text) == (reasoning, content)
    assert split(made(begun), *text) == (reasoning, content)
    for at in range(len(text)):
        for until in (at, at + 1, at + 7):
            assert split(made(begun), text[:at], text[at:until], text[until:]) == (reasoning, content)


def test_certain_text_is_passed_on_at_once() -> None:
    parser = parser_of("qwen3")(None)
    assert parser.feed("<think>\nHm") == SplitText("Hm") and parser.reasons and parser.reasoned
    assert parser.feed(" so ") == SplitText(" so")
    assert parser.feed("<") == SplitText()
    assert parser.feed("b") == SplitText(" <b")
    assert parser.feed("</think>Yes") == SplitText("", "Yes") and not parser.reasons and parser.reasoned
    assert parser.feed(" \n") == SplitText("", " \n")


@pytest.mark.parametrize(
    ("name", "begun", "text", "reasoned"),
    [
        ("qwen3", None, "Yes", False),
        ("qwen3", None, "<think></think>Yes", True),
        ("qwen3", False, "Yes", False),
        ("qwen3", None, "<th", False),
        ("deepseek_r1", None, "", True),
    ],
)
def test_whether_there_was_any(name: str, begun: bool | None, text: str, reasoned: bool) -> None:
    parser = parser_of(name)(begun)
    split(parser, text)
    assert parser.reasoned is reasoned


@pytest.mark.parametrize(
    ("prompt", "continued", "begun"),
    [
        ("<user>hi<assistant>", None, None),
        ("<user>hi<assistant><think>\n", None, True),
        ("<user>hi<assistant><think>\n\n</think>\n\n", None, False),
        ("<user>a<assistant><think>b</think>c<user>hi<assistant>", None, None),
        ("<assistant>It is", "It is", False),
        ("<assistant><think>It is", "<think>It is", True),
        ("<assistant><think>a</think>It is", "<think>a</think>It is", False),
        ("<assistant><think>\n", " ", True),
    ],
)
def test_reasoning_that_the_prompt_began_is_recognized(prompt: str, continued: str | None, begun: bool | None) -> None:
    assert parser_of("deepseek_r1").begun_by(prompt, continued) is begun


def test_free_text_before_a_grammar_depends_on_the_parser() -> None:
    marks = ("<think>",), ("</think>",)
    assert parser_of("qwen3").before_grammar(None) == FreeText(*marks, begun=False)
    assert parser_of("qwen3").before_grammar(True) == FreeText(*marks, begun=True)
    assert parser_of("deepseek_r1").before_grammar(None) == FreeText(*marks, begun=True)
    assert parser_of("deepseek_r1").before_grammar(False) is None


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_every_name_has_a_parser(name: str) -> None:
    assert issubclass(parser_of(name), ReasoningParser)


def test_a_name_that_nobody_knows_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        ConfigError, match=r"^option\.reasoning_parser 'nope' is not known; expected one of cohere_comma"
    ):
        reasoning_parser_path("nope")
    with pytest.raises(ConfigError, match="has no 'Gone'"):
        reasoning_parser(None, "json:Gone", ())


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ x }}<think>", None),
        ("{% if '</think>' in x %}", "qwen3"),
        ("<seed:think></think>", "seed_oss"),
        ("[THINK]", "mistral"),
        ("Write 'Here is my thought process:' first", "granite"),
        ("<think></think><answer>", "hunyuan_a13b"),
    ],
)
def test_a_template_tells_how_its_model_reasons(template: str, name: str | None) -> None:
    assert reasoning_parser(None, "", [template]) is reasoning_parser(False, "qwen3", [template]) is None
    if name is None:
        with pytest.raises(
            ConfigError, match=r"does not tell how reasoning is marked; set option\.reasoning_parser to"
        ):
            reasoning_parser(True, "", [template])
    else:
        assert reasoning_parser(True, "", [template]) is parser_of(name)


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "content"),
    [
        ("qwen3", "<thi", "", ""),
        ("qwen3", "\n<", "", ""),
        ("qwen3", "  ", "", "  "),
        ("deepseek_r1", "<thi", "", ""),
        ("qwen3", "<b", "", "<b"),
        ("qwen3", "<think>Hm</thi", "Hm</thi", ""),
    ],
)
def test_an_opening_mark_that_a_limit_cuts_is_no_content(name: str, text: str, reasoning: str, content: str) -> None:
    parser = parser_of(name)(None)
    parts = [parser.feed(text), parser.finish(cut=True)]
    assert "".join(part.reasoning for part in parts) == reasoning
    assert "".join(part.content for part in parts) == content
