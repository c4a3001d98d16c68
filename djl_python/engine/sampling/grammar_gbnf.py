r"""Translates GBNF, llama.cpp's form of grammars, for llguidance. Runs where grammars are tried: it may be slow.

llguidance divides a text into lexemes as greedily as any lexer, and GBNF has none: after `[ \n]*`, a line break
may be the next rule's. So every lexeme is one character. llguidance's own translation does most, and is given what it
reads right: characters in one spelling (of `\u00e9` it makes `\ue9`, and its regular expressions have operators such as
`&&` in classes), and rules under names that stay different.
Source: llama.cpp's grammars/README.md; vLLM's and SGLang's EBNF is the same.
"""

from __future__ import annotations

import re
from typing import Final

#: Comments, literals, classes of characters, counts of repetitions, any character, names and `::=`.
_PIECES: Final = re.compile(
    r"""(?P<comment>\#[^\r\n]*)
    | "(?P<literal>(?:\\.|[^"\\])*)"
    | \[(?P<inverse>\^?)(?P<class>(?:\\.|[^\]\\])*)\]
    | (?P<count>\{[^}\n]*\}?)
    | (?P<any>\.)
    | (?P<name>[\w-]+)(?P<defined>[ \t]*::=)?""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|(.)", re.DOTALL)
_CAPITALS: Final = re.compile(r"\bRULE_(\d+)\b")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", **{same: same for same in '"\\[]'}}
_ROOT: Final = "root"


def lark_of(source: str) -> str:
    """A GBNF grammar in Lark's form, as llguidance reads it.

    Raises:
        ValueError: it is not valid.
    """
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    plain = _plain(source)
    try:
        # A rule in capitals would be one lexeme.
        return _CAPITALS.sub(r"rule_\1", gbnf_to_lark(plain))
    except GbnfToLarkError as error:
        line = plain.count("\n", 0, error.pos.pos) + 1
        raise ValueError(f"GBNF, line {line}: {str(error).partition(' at line ')[0]}") from error
    except IndexError as error:  # it ends within an escape
        raise ValueError("GBNF: unexpected end of input") from error
    except RecursionError as error:
        raise ValueError("GBNF: nested too deeply") from error


def _plain(source: str) -> str:
    """The grammar with one spelling of each character, and rules called `root` and `rule-1` to `rule-n`.

    Raises:
        ValueError: a rule is missing, or an escape has no meaning.
    """
    names = {_ROOT: _ROOT}
    used, defined = {_ROOT}, set[str]()

    def rewritten(piece: re.Match[str]) -> str:
        groups = piece.groupdict()
        if groups["literal"] is not None:
            characters = [f'"{_in_literal(character)}"' for character, _ in _characters(groups["literal"])]
            return f"({' '.join(characters)})" if len(characters) > 1 else "".join(characters) or '""'
        if groups["class"] is not None:
            return f"[{groups['inverse']}{_class(groups['class'])}]"
        if groups["any"]:
            return r"([^\n] | [\n])"  # as a regular expression, a dot would leave out line breaks
        if (name := groups["name"]) is None:
            return "" if groups["comment"] else piece[0]
        (used if groups["defined"] is None else defined).add(name)
        return names.setdefault(name, f"rule-{len(names)}") + (groups["defined"] or "")

    plain = _PIECES.sub(rewritten, source)
    if missing := sorted(used - defined):
        raise ValueError(f"GBNF: there is no rule {missing[0]}")
    return plain


def _characters(text: str) -> list[tuple[str, bool]]:
    """The characters of a literal or of a class, and whether each was escaped."""
    characters = []
    for match in _CHARACTER.finditer(text):
        *codes, escaped, plain = match.groups()
        code = next((candidate for candidate in codes if candidate is not None), None)
        if escaped is not None and escaped not in _ESCAPES:
            raise ValueError(f"GBNF: \\{escaped} is no escape")
        character = chr(int(code, 16)) if code is not None else plain if escaped is None else _ESCAPES[escaped]
        characters.append((character, plain is None))
    return characters


def _in_literal(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() or not character.isascii() else f"\\x{ord(character):02x}"


def _class(text: str) -> str:
    """The content of a class of characters, with ranges as in the source and no other operators."""
    characters = _characters(text)
    ranges = {
        at for at, character in enumerate(characters) if character == ("-", False) and 0 < at < len(characters) - 1
    }
    # After a range, a hyphen is itself: of "a-c-e", the second one is.
    ranges = {at for at in ranges if at - 2 not in ranges and at - 1 not in ranges}
    return "".join("-" if at in ranges else _in_class(character) for at, (character, _) in enumerate(characters))


def _in_class(character: str) -> str:
    return character if character.isalnum() or not character.isascii() else f"\\x{ord(character):02x}"
