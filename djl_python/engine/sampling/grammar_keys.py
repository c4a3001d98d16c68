"""Removes a JSON schema's patterns that leave no further keys. Engine process.

Where every key that matches a pattern of `patternProperties` is in `properties` or `required`, llguidance's mask allows
a comma after the last of those, and then no key: the text can neither go on nor end. Such a pattern is removed, and its
    constraints are applied to these properties by name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...formats.json_instances import mapping, names_in
from ...formats.json_schema import with_subschemas

if TYPE_CHECKING:  # imported where it is first needed: most engines never compile a grammar
    from llguidance import LLParserLimits

_PATTERNS: Final = "patternProperties"
#: Names times patterns of an object that are looked at; in a larger one a used-up pattern is not worth the time.
_MOST_QUESTIONS: Final = 400


def without_used_up_patterns(schema: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """The schema without patterns whose keys are all listed or required."""
    rewritten = with_subschemas(schema, lambda subschema: without_used_up_patterns(subschema, keys))
    patterns = rewritten.get(_PATTERNS)
    if not isinstance(patterns, dict):
        return rewritten
    listed, left = dict(mapping(rewritten.get("properties"))), dict(patterns)
    names = list(dict.fromkeys([*listed, *names_in(rewritten.get("required"))]))
    if len(names) * len(patterns) > _MOST_QUESTIONS:
        return rewritten
    for pattern, asked in patterns.items():
        if not keys.left(names, pattern):
            del left[pattern]
            for name in names:
                if keys.matches(name, pattern):
                    listed[name] = {"allOf": [listed[name], asked]} if name in listed else asked
    return {**rewritten, "properties": listed, _PATTERNS: left}


class Keys:
    """Answers questions about keys by asking llguidance what may follow in an object that has some.

    Args:
        white_space: the pattern of white space between JSON's tokens.
        limits: of a grammar's size.
    """

    def __init__(self, white_space: str, limits: LLParserLimits) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self._octets = LLTokenizer(TokenizerWrapper(_Octets()))
        self._white_space = white_space
        self._limits = limits

    def left(self, names: Collection[str], pattern: str) -> bool:
        """Whether a pattern matches a key that is not among these."""
        begun = "{" + "".join(f"{json.dumps(name, ensure_ascii=False)}:0," for name in names) + '"'
        return self._allows(begun, pattern, names)

    def matches(self, name: str, pattern: str) -> bool:
        """Whether a pattern matches this key."""
        return self._allows(f"{{{json.dumps(name, ensure_ascii=False)}:", pattern, ())

    def _allows(self, begun: str, pattern: str, names: Collection[str]) -> bool:
        from llguidance import LLMatcher

        schema = {
            "type": "object",
            "properties": {name: {"const": 0} for name in names},
            "required": list(names),
            _PATTERNS: {pattern: {"const": 0}},
            "additionalProperties": False,
        }
        source = LLMatcher.grammar_from_json_schema(schema, {"whitespace_pattern": self._white_space})
        matcher = LLMatcher(self._octets, source, log_level=0, limits=self._limits)
        if matcher.is_error():  # the pattern is not valid, or too large: the check of the whole schema reports it
            return True
        return bool(matcher.consume_tokens(list(begun.encode())))


class _Octets:
    """A vocabulary of bytes, for questions that have nothing to do with a model's."""

    tokens: ClassVar = [bytes([octet]) for octet in range(256)] + [b"<end>"]
    special_token_ids: ClassVar = [256]
    eos_token_id, bos_token_id = 256, None

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
