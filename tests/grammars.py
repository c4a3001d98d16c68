"""Grammars for tests: a compiler of a checkpoint's tokenizer, or of single bytes; texts drawn from what masks allow."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema.validators import validator_for
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from djl_python.core.errors import ParameterError
from djl_python.core.types import Grammar
from djl_python.engine.sampling.grammar import MaskComputer, Matcher
from djl_python.engine.sampling.grammar_compiler import GrammarCompiler
from djl_python.formats.json_schema import check, closed
from djl_python.text.tokens import tokenizer as text_tokenizer
from djl_python.text.tokens.token_bytes import bytes_of_entry
from djl_python.text.tokens.vocabulary import vocabulary_of


def compiler_of(checkpoint: Path, rows: int, *eos_ids: int) -> GrammarCompiler:
    made = GrammarCompiler(rows, frozenset(eos_ids))
    made.set_vocabulary(vocabulary_of(text_tokenizer.Tokenizer.load(checkpoint)))
    return made


def allowed(matcher: Matcher) -> list[int]:
    mask = MaskComputer(1).masks([matcher])[0]
    return [int(i) for i in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


def byte_compiler(tmp_path: Path) -> tuple[GrammarCompiler, dict[int, bytes]]:
    """A compiler for a tokenizer of single bytes, the finest steps that a text can be written in; and its bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({"</s>": 0} | {char: i for i, char in enumerate(alphabet, 1)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    octets = {i: bytes_of_entry(char) for i, char in enumerate(alphabet, 1)}
    return compiler_of(tmp_path, 257, 0), octets


def written(matcher: Matcher, octets: dict[int, bytes], draw: random.Random, most: int = 600) -> bytes | None:
    """A text that follows the grammar, drawn byte by byte up to its end; None: it has none after `most` bytes."""
    text = bytearray()
    while len(text) < most:
        ids = allowed(matcher)
        assert ids, f"no token may follow {bytes(text)!r}"
        if 0 in ids and (len(ids) == 1 or draw.random() < 0.5):
            return bytes(text)
        closing = [i for i in ids if octets.get(i, b"") in b'"}],' and i]
        likely = closing if closing and draw.random() < (0.3 if len(text) < 150 else 0.9) else ids
        token = draw.choice([i for i in likely if i and octets[i] not in b" \n"] or ids)
        matcher.accept_token(token)
        text += octets.get(token, b"")
    return None


def outcomes_of(
    schema: Any, compiler: GrammarCompiler, octets: dict[int, bytes], draw: random.Random, *, texts: int
) -> Counter[str]:
    """How often texts of a client's schema were "written" or "endless", or that it was "refused" beforehand.

    Asserts that no text leads into a dead end, and that those that are written are instances.
    """
    try:
        check(schema, "schema")
        compiled = compiler.compile(Grammar("json_schema", json.dumps(closed(schema)))).result()
    except ParameterError:
        return Counter(["refused"])
    outcomes = Counter[str]()
    for _ in range(texts):
        text = written(Matcher(compiled), octets, draw)
        outcomes["endless" if text is None else "written"] += 1
        if text is not None:
            validator_for(schema)(schema).validate(json.loads(text))
    return outcomes
