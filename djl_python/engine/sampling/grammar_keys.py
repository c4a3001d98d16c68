"""Keys that a JSON schema's patterns leave over. Engine process.

Where every key that matches a pattern of `patternProperties` is in `properties` or `required`, llguidance's mask allows
a comma after the last of those, and then no key: the text can neither go on nor end. Such a pattern is taken out, and
what it asks of these properties is asked of them by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

_PATTERNS: Final = "patternProperties"


def without_used_up_patterns(schema: Any, leaves_a_key: Callable[[Iterable[str], str], bool]) -> Any:
    """The same schema without patterns whose keys are all listed.

    Args:
        schema: a schema, or a part of one.
        leaves_a_key: whether a pattern matches a key that is not among these.
    """
    if isinstance(schema, list):
        return [without_used_up_patterns(one, leaves_a_key) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: without_used_up_patterns(value, leaves_a_key) for key, value in schema.items()}
    patterns, listed, required = (found.get(key) for key in (_PATTERNS, "properties", "required"))
    if not isinstance(patterns, Mapping):
        return found
    listed, left = dict(listed) if isinstance(listed, Mapping) else {}, dict(patterns)
    names = [*listed, *(name for name in (required if isinstance(required, list) else ()) if isinstance(name, str))]
    names = list(dict.fromkeys(names))
    for pattern, asked in patterns.items():
        if not leaves_a_key(names, pattern):
            del left[pattern]
            for name in filter(re.compile(pattern).search, names):
                listed[name] = {"allOf": [listed[name], asked]} if name in listed else asked
    return {**found, "properties": listed, _PATTERNS: left}


def key_finder(white_space: str) -> Callable[[Iterable[str], str], bool]:
    """A `leaves_a_key` that asks llguidance: may another key follow an object that has all those keys?"""
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    octets = LLTokenizer(TokenizerWrapper(_Octets()))

    def leaves_a_key(listed: Iterable[str], pattern: str) -> bool:
        schema = {
            "type": "object",
            "properties": {name: {"const": 0} for name in listed},
            "required": list(listed),
            _PATTERNS: {pattern: {"const": 0}},
            "additionalProperties": False,
        }
        source = LLMatcher.grammar_from_json_schema(schema, {"whitespace_pattern": white_space})
        matcher = LLMatcher(octets, source, log_level=0)
        if matcher.is_error():  # the pattern is not valid: whoever reads the whole schema says so
            return True
        begun = "{" + "".join(f"{json.dumps(name, ensure_ascii=False)}:0," for name in listed) + '"'
        return bool(matcher.consume_tokens(list(begun.encode())))

    return leaves_a_key


class _Octets:
    """A vocabulary of bytes, for questions that have nothing to do with a model's."""

    tokens: ClassVar = [bytes([octet]) for octet in range(256)] + [b"<end>"]
    special_token_ids: ClassVar = [256]
    eos_token_id, bos_token_id = 256, None

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
