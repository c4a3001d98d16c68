"""GBNF: which texts a grammar allows, and what is wrong with a broken one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from djl_python.core.errors import ParameterError
from djl_python.core.types import FreeText, Grammar
from djl_python.engine.sampling.grammar import CompiledGrammar, Matcher
from djl_python.engine.sampling.grammar_compiler import GrammarCompiler
from djl_python.engine.sampling.grammar_gbnf import lark_of
from tests.grammars import allowed, byte_compiler

Allows = Callable[[CompiledGrammar, str], bool]

ARITHMETIC = r"""
# llama.cpp's example, with a hyphen in a name and in a class
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= my-ident | num | "(" ws expr ")" ws
my-ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GrammarCompiler, Allows]]:
    """A compiler of grammars, and whether a grammar of its allows a text, byte by byte."""
    compiler, octets = byte_compiler(tmp_path_factory.mktemp("bytes"))
    ids = {octet: token_id for token_id, octet in octets.items()}

    def allows(compiled: CompiledGrammar, text: str) -> bool:
        matcher = Matcher(compiled)
        for byte in text.encode():
            if ids[bytes([byte])] not in allowed(matcher):
                return False
            matcher.accept_token(ids[bytes([byte])])
        return 0 in allowed(matcher)

    yield compiler, allows
    compiler.close()


@pytest.mark.parametrize(
    ("source", "texts", "others"),
    [
        (ARITHMETIC, ["a_1 =1\n", "(a-1)*2/b=(x)\n(1)=1\n"], ["a", "a=\n", "A=1\n", "a&1=1\n"]),
        (JSON, ['{"a": [1, true, {}, "\\u00e9\\n"]}', "{}"], ["[]", '{"a": tru}', '{"a"}', '{"a": "\x01"}']),
        (r'root ::= "\u00e9\U0001F600" [\u00e0-\u00ef] "\x41"', ["é😀êA"], ["é😀ðA", "é😀êa"]),
        ('root ::= "/\\[x\\]" "{}%//#"', ["/[x]{}%//#"], ["/x"]),
        ("root ::= [a&&b~~c]", ["a", "&", "b", "~", "c"], ["d"]),
        ("root ::= [--/] [^-a] [x-] [a-c-]", [".zx-", "-bxa"], ["0bxa", "--xa", ".zya"]),
        ("root ::= . .{2,3}", ["a\nb", "é😀c\n"], ["ab", "abcde"]),
        (
            "root ::= start\nstart ::= fooBar | foo_bar | foo-bar\n"
            'fooBar ::= "a"\nfoo_bar ::= "b"\nfoo-bar ::= "c" start',
            ["cca", "b"],
            ["c"],
        ),
        ('root ::= "a" root "b" |', ["", "aabb"], ["aab", "b"]),
        ('root ::= ("ab" "x" | [a] [b] "y") [0-9]* "1"', ["abx1", "aby1211"], ["abz1", "abx2"]),
        ('root ::= "x"{2}', ["xx"], ["x", "xxx"]),
        ('root ::= "x" # "y"\n', ["x"], ["xy"]),
    ],
)
def test_a_gbnf_grammar_allows_its_texts_only(
    made: tuple[GrammarCompiler, Allows], source: str, texts: list[str], others: list[str]
) -> None:
    compiler, allows = made
    compiled = compiler.compile(Grammar("gbnf", source)).result(60)
    assert [text for text in texts if not allows(compiled, text)] == []
    assert [text for text in others if allows(compiled, text)] == []


def test_behind_reasoning_it_is_for_the_answer_alone(made: tuple[GrammarCompiler, Allows]) -> None:
    compiler, allows = made
    before = FreeText(("<think>",), ("</think>",), begun=False)
    compiled = compiler.compile(Grammar("gbnf", JSON, before=before)).result(60)
    assert allows(compiled, '<think>{ "hm"</think>\n{"a": 1}')
    assert allows(compiled, '{"a": 1}')
    assert not allows(compiled, "<think>hm</think>hm")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "there is no rule root"),
        ('answer ::= "a"', "there is no rule root"),
        ('root ::= "a"\nroot ::= b', "there is no rule b"),
        ('root ::= "a"\n::= "b"', "line 2: Expected name"),
        ('root ::= "a" )', "line 1: Expected name"),
        ('root ::= ("a"', "line 1: Expected ')'"),
        (r'root ::= "\d"', r"\d is no escape"),
        ('root ::= "a"{2', "line 1: Expected"),
        ("root ::= " + "(" * 20_000, "nested too deeply"),
    ],
)
def test_a_wrong_gbnf_grammar_is_refused_with_the_reason(source: str, why: str) -> None:
    with pytest.raises(ValueError, match="GBNF") as caught:
        lark_of(source)
    assert why in str(caught.value)


def test_a_broken_grammar_and_one_that_takes_too_long_are_refused(made: tuple[GrammarCompiler, Allows]) -> None:
    compiler, _ = made
    rules = [f'r{i} ::= r{i + 1} | "a"' for i in range(4000)]
    for source, why in (
        ("root ::= a", "grammar is not valid: GBNF: there is no rule a"),
        ("\n".join(["root ::= r0", *rules, 'r4000 ::= "b"']), "grammar is not valid: it takes more than 2 s"),
    ):
        with pytest.raises(ParameterError) as caught:
            compiler.compile(Grammar("gbnf", source)).result(120)
        assert caught.value.message.startswith(why)
