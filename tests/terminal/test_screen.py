import io

import pytest
from rich.console import Console

from djl_python.terminal.screen import MarkdownAnswer, PlainAnswer, blocks, harmless


def test_no_control_character_reaches_the_terminal() -> None:
    assert harmless("a\x1b[2Jb\x07\r\n\tc\x9b1m\u202ed") == "a[2Jb\n\tc1md"


@pytest.mark.parametrize(
    ("text", "complete", "rest"),
    [
        ("one", [], "one"),
        ("one\n\ntwo", ["one"], "two"),
        ("one\n \t\ntwo\n\n", ["one", "two"], ""),
        ("```\na\n\nb\n", [], "```\na\n\nb\n"),
        ("```\na\n\nb\n```\n\nc", ["```\na\n\nb\n```"], "c"),
    ],
)
def test_a_blank_line_ends_a_block_but_not_in_a_fence(text: str, complete: list[str], rest: str) -> None:
    assert blocks(text) == (complete, rest)


@pytest.mark.parametrize("kind", [PlainAnswer, MarkdownAnswer])
def test_the_whole_answer_is_left_on_the_screen(kind: type[PlainAnswer]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=40, height=5, color_system=None)
    with kind(console) as answer:
        answer.reason("let me think")
        for piece in ("# Tit", "le\n\nSome **bo", "ld** words.\n\n", "- a\n" * 9, "\nend"):
            answer.write(piece)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for text in ("let me think", "Title", "bold", "words.", "end"):
        assert text in shown
    assert ("**bold**" in shown) is (kind is PlainAnswer)
