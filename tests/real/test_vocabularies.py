"""Real tokenizers: ids, text as it streams, stop sequences, grammars; and the tool syntax of real chat templates."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from transformers import AutoTokenizer

from djl_python.core.types import Chat, GenerateRequest, Grammar, SamplingParams, TextOptions, TokenEvent, ToolUse
from djl_python.engine.sampling.grammar import MaskComputer, Matcher
from djl_python.engine.sampling.grammar_compiler import GrammarCompiler
from djl_python.text.chat import ChatTemplates
from djl_python.text.stop import StopSequences
from djl_python.text.stream import TextStream
from djl_python.text.tokens.detokenizer import detokenizer
from djl_python.text.tokens.tokenizer import Tokenizer
from djl_python.text.tokens.vocabulary import vocabulary_of
from djl_python.text.tools.parser import syntax_of
from tests.real.vocabularies import EXACT, NAMES, vocabularies

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "größe": {"type": "string", "maxLength": 6},
        "n": {"type": "integer", "minimum": -5, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "日本", "😀", 'a "b"']}, "maxItems": 3},
    },
    "required": ["größe", "n"],
}


@pytest.fixture(scope="session")
def real() -> Path:
    path = vocabularies()
    if not path.is_dir():
        pytest.skip(
            "they have not been fetched: `make test` and `python -m tests.real.vocabularies` do, and say why not"
        )
    return path


class Vocabulary:
    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.tokenizer = Tokenizer.load(path)
        cases = json.loads((path / "cases.json").read_text("utf-8"))
        self.texts = [case["text"] for case in cases if case["text"]]
        self.expected = [case["ids"] for case in cases if case["text"]]
        self.end = next(iter(self.tokenizer.eos_ids or self.tokenizer.special_ids))

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in EXACT else pytest.mark.slow) for name in NAMES]
)
def vocabulary(request: pytest.FixtureRequest, real: Path) -> Vocabulary:
    return Vocabulary(request.param, real / request.param)


def test_ids_are_transformers(vocabulary: Vocabulary) -> None:
    theirs = AutoTokenizer.from_pretrained(vocabulary.path)
    for text, expected in zip(vocabulary.texts, vocabulary.expected, strict=True):
        ids = vocabulary.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert vocabulary.name not in EXACT or ids == expected, text


def test_a_text_streams_as_it_decodes(vocabulary: Vocabulary) -> None:
    """Behind a prompt, token by token: nothing is taken back, and no character is split."""
    tokenizer = vocabulary.tokenizer
    prompt = vocabulary.encode("Answer:")
    for text in vocabulary.texts:
        ids = vocabulary.encode(text)
        reader = detokenizer(tokenizer, prompt, TextOptions())
        pieces = [reader.push(token_id) for token_id in ids]
        whole = tokenizer.decode([*prompt, *ids]).removeprefix(tokenizer.decode(prompt))
        assert "".join(pieces) + reader.flush() == whole, text
        assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def test_a_stop_sequence_ends_a_text_where_it_begins(vocabulary: Vocabulary) -> None:
    draw = random.Random(1)
    tokenizer, prompt = vocabulary.tokenizer, vocabulary.encode("Answer:")
    for text in vocabulary.texts:
        ids = vocabulary.encode(text)
        whole = tokenizer.decode([*prompt, *ids]).removeprefix(tokenizer.decode(prompt))
        at = draw.randrange(len(whole))
        stop = whole[at : at + draw.randint(1, 5)]
        request = GenerateRequest(
            prompt="x", sampling=SamplingParams(max_new_tokens=999), text=TextOptions(stop_sequences=(stop,))
        )
        stream = TextStream(tokenizer, request, StopSequences((stop,)), prompt, "x")
        said, finish = "", None
        for token_id in ids:
            tokens, finish = stream.push(TokenEvent(1, token_id))
            said += "".join(token.text for token in tokens)
            if finish is not None:
                break
        assert finish is not None and finish.stop == stop, text
        assert said == finish.text == whole[: whole.index(stop)], text


GRAMMARS = [
    Grammar("json_schema", json.dumps({**SCHEMA, "additionalProperties": False}, ensure_ascii=False)),
    Grammar("regex", r"(yes|no|日本語|😀😀)( \w{2,5})?[.!]"),
    Grammar("regex", r"\d{3}-\d{4}"),
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=["schema", "words", "digits"])
def test_a_grammars_texts_fit_it(vocabulary: Vocabulary, grammar: Grammar) -> None:
    """Whatever tokens are drawn of those that the mask allows, in the text that the client gets."""
    tokenizer = vocabulary.tokenizer
    compiler = GrammarCompiler(tokenizer.vocab_size + 7, frozenset({vocabulary.end}))
    compiler.set_vocabulary(vocabulary_of(tokenizer))
    compiled = compiler.compile(grammar).result()
    draw, masks = random.Random(3), MaskComputer(1)
    prompt = vocabulary.encode("Answer:")
    for _ in range(8):
        matcher, reader, text = Matcher(compiled), detokenizer(tokenizer, prompt, TextOptions()), ""
        for _ in range(400):
            bits = np.unpackbits(masks.masks([matcher])[0].view(np.uint8), bitorder="little")
            ids = [int(i) for i in np.flatnonzero(bits)]
            token = (
                vocabulary.end if vocabulary.end in ids and (len(ids) == 1 or draw.random() < 0.3) else draw.choice(ids)
            )
            if matcher.accept_token(token):
                break
            text += reader.push(token)
        else:
            raise AssertionError(f"no end: {text!r}")
        if grammar.kind == "regex":
            assert re.fullmatch(grammar.source, text), text
        else:
            Draft202012Validator(SCHEMA).validate(json.loads(text))


@pytest.mark.parametrize("text", ['{"name": "weather", "arguments": {"city": "Paris"}}', "yes, please", "日本"])
def test_forced_text_is_written_in_the_tokenizers_own_tokens(vocabulary: Vocabulary, text: str) -> None:
    tokenizer = vocabulary.tokenizer
    compiler = GrammarCompiler(tokenizer.vocab_size, frozenset({vocabulary.end}))
    compiler.set_vocabulary(vocabulary_of(tokenizer))
    matcher = Matcher(compiler.compile(Grammar("regex", re.escape(text))).result())
    reader, said, count = detokenizer(tokenizer, vocabulary.encode("Answer:"), TextOptions()), "", 0
    while True:
        bits = np.unpackbits(MaskComputer(1).masks([matcher])[0].view(np.uint8), bitorder="little")
        token = int(np.flatnonzero(bits)[0])
        if matcher.accept_token(token):
            break
        said += reader.push(token)
        count += 1
    assert said == text
    assert count <= len(vocabulary.encode("\n" + text)) + 1


SYNTAXES = {
    "Bielik-11B-v3.0-Instruct": "hermes",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "GLM-4.6": "glm45",
    "google-gemma-2-2b-it": None,
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
}


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_real_template_tells_its_syntax_and_shows_its_tools(real: Path, name: str) -> None:
    source = (real / "templates" / f"{name}.jinja").read_text("utf-8")
    assert syntax_of(source) == SYNTAXES[name]
    if SYNTAXES[name] is not None:
        tool = {
            "type": "function",
            "function": {"name": "look_it_up", "description": "x", "parameters": {"type": "object", "properties": {}}},
        }
        chat = Chat(messages=({"role": "user", "content": "hi"},), tool_use=ToolUse(tools=(tool,)))
        assert "look_it_up" in ChatTemplates({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"}).render(
            chat
        )
