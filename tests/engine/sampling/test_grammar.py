"""Structured output. The oracle: what comes out of a random model is JSON that jsonschema finds valid."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLParserLimits
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM

from djl_python.config import ModelConfig
from djl_python.core.errors import GenerationError, ParameterError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import FinishReason, FreeText, Grammar, SamplingParams, TokenEvent, Vocabulary
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.client import EngineClient
from djl_python.engine.sampling.grammar import CompiledGrammar, MaskComputer, Matcher, forbid, tokenizer_of
from djl_python.engine.sampling.grammar_compiler import GrammarCompiler
from djl_python.engine.sampling.grammar_limits import CACHED_GRAMMARS, TrialLimits
from djl_python.engine.sampling.grammar_trials import Attempt, Trials
from djl_python.formats.json_schema import closed
from djl_python.text.tokens import tokenizer as text_tokenizer
from djl_python.text.tokens.vocabulary import vocabulary_of
from tests import engines
from tests.checkpoints import ARCHITECTURES, VOCABULARY
from tests.engines import run_to_end
from tests.grammars import allowed, byte_compiler, compiler_of, outcomes_of, written
from tests.schemas import odd_schema, random_schema

EOS = 1
TOKENS = VOCABULARY - 20  # the embedding has 20 rows that no token has
CORPUS = ['{"name": "value", "items": [1, 2, 3], "true": false}', "the red and the green", "12.5, 100, null"] * 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama, and a byte-level BPE tokenizer that goes with it."""
    path = tmp_path_factory.mktemp("llama")
    config = ARCHITECTURES["llama"]()
    config.max_position_embeddings = 1024
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = EOS
    model.save_pretrained(path)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=TOKENS, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    assert trained.get_vocab_size() == TOKENS
    trained.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


@pytest.fixture(scope="module")
def batch(checkpoint: Path) -> PagedRollingBatch:
    """For tests that leave nothing behind."""
    return open_batch(checkpoint)


@pytest.fixture(scope="module")
def compiler(checkpoint: Path) -> GrammarCompiler:
    return compiler_of(checkpoint, VOCABULARY, EOS)


def open_batch(path: Path, **settings: Any) -> PagedRollingBatch:
    defaults: dict[str, Any] = {"max_batch_size": 32, "kv_cache_memory_mb": 64, "threads": 1}
    return engines.open_batch(path, **{**defaults, **settings})


def run_clean(batch: PagedRollingBatch) -> dict[int, list[TokenEvent]]:
    """`run_to_end`, after which nothing is left."""
    events = run_to_end(batch)
    assert batch.stats.running == batch.stats.waiting == batch.stats.kv_blocks_used == 0
    return events


def run_one(batch: PagedRollingBatch, prompt: list[int], params: SamplingParams) -> list[TokenEvent]:
    batch.add(SequenceRequest(prompt, params, id=1))
    return run_clean(batch)[1]


def ids_of(events: list[TokenEvent]) -> list[int]:
    return [event.token_id for event in events]


def text_of(tokenizer: Tokenizer, events: list[TokenEvent]) -> str:
    """The generated text of a sequence that ended by itself."""
    assert (events[-1].finish, events[-1].token_id) == (FinishReason.EOS, EOS), events[-1]
    return str(tokenizer.decode(ids_of(events)[:-1]))


def regex(source: str, **params: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 60, **params}, grammar=Grammar("regex", source))


def schema_request(index: int, tokenizer: Tokenizer) -> tuple[list[int], SamplingParams, dict[str, Any]]:
    """Prompt, parameters (every other one greedy), schema. What closes a value is likelier: a random model may not."""
    rng = random.Random(index)
    schema = random_schema(rng)
    vocabulary = tokenizer.get_vocab()
    closers = {vocabulary[token]: 4.0 for token in '"}],'}
    params = SamplingParams(
        max_new_tokens=600,
        do_sample=index % 2 == 1,
        seed=index,
        logit_bias=closers,
        grammar=Grammar("json_schema", json.dumps(schema)),
    )
    return [rng.randrange(2, TOKENS) for _ in range(rng.randrange(1, 20))], params, schema


def test_answers_to_random_schemas_are_instances_alone_and_in_a_batch(
    batch: PagedRollingBatch, tokenizer: Tokenizer
) -> None:
    requests = [schema_request(index, tokenizer) for index in range(50)]
    crowd = [
        ([5 + i, 9, 70 + i], SamplingParams(max_new_tokens=80, do_sample=i % 2 == 1, seed=i, ignore_eos=i % 3 == 0))
        for i in range(16)
    ]
    alone: dict[int, list[int]] = {}
    for index, (prompt, params, schema) in enumerate(requests):
        events = run_one(batch, prompt, params)
        Draft202012Validator(schema).validate(json.loads(text_of(tokenizer, events)))
        alone[index] = ids_of(events)
    for index, (prompt, params) in enumerate(crowd):
        alone[100 + index] = ids_of(run_one(batch, prompt, params))
    for index, (prompt, params) in enumerate(crowd):
        batch.add(SequenceRequest(prompt, params, id=100 + index))
    for index, (prompt, params, _) in enumerate(requests):
        batch.add(SequenceRequest(prompt, params, id=index))
    together = run_clean(batch)
    assert {index: ids_of(events) for index, events in together.items()} == alone


@pytest.mark.parametrize(
    "source",
    [
        r"\d{3}-[a-z]+@x",
        r"^(yes|no|perhaps so)$",
        r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)",
        r"[A-Z][a-zäöü]{2,9}( [A-Z]\.)? \w{1,4}/[^/\x00-\x20]{2}",
        r"(?i)abc|a\\b\n\"c\"",
        r"(日本|ひ){2,3}[^\x00-ÿ]?",
    ],
)
@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampling"])
def test_regular_expressions_match_the_whole_text(
    batch: PagedRollingBatch, tokenizer: Tokenizer, source: str, do_sample: bool
) -> None:
    closers = {EOS: 3.0, tokenizer.get_vocab()["@"]: 5.0}
    for seed in range(4):
        text = text_of(
            tokenizer, run_one(batch, [9, 8 + seed], regex(source, do_sample=do_sample, seed=seed, logit_bias=closers))
        )
        assert re.fullmatch(source, text), text


def test_a_json_object_without_a_schema_is_an_object(batch: PagedRollingBatch, tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    closers = {vocabulary[token]: 8.0 for token in '"}]'}
    params = SamplingParams(
        max_new_tokens=300, do_sample=True, seed=4, logit_bias=closers, grammar=Grammar("json_object")
    )
    assert isinstance(json.loads(text_of(tokenizer, run_one(batch, [9, 8], params))), dict)


def test_white_space_is_allowed_and_comes_to_an_end(batch: PagedRollingBatch, tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    spaces = {vocabulary[token]: 50.0 for token in ("Ġ", "Ċ", "ĉ", "č")}
    grammar = Grammar("json_schema", '{"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}')
    text = text_of(
        tokenizer, run_one(batch, [9], SamplingParams(max_new_tokens=200, logit_bias=spaces, grammar=grammar))
    )
    assert re.search(r"[ \n]", text)
    assert json.loads(text) == [1, 1]


@pytest.mark.parametrize("params", [{"ignore_eos": True}, {"min_new_tokens": 50}, {}], ids=str)
def test_a_grammar_that_allows_nothing_more_ends_the_text(
    batch: PagedRollingBatch, tokenizer: Tokenizer, params: dict[str, Any]
) -> None:
    assert text_of(tokenizer, run_one(batch, [9], regex("abc", **params))) == "abc"


def test_the_end_is_put_off_for_as_long_as_the_grammar_allows(batch: PagedRollingBatch) -> None:
    eager = {EOS: 100.0}
    assert len(run_one(batch, [9], regex("[a-z]*", logit_bias=eager))) == 1
    assert len(run_one(batch, [9], regex("[a-z]*", logit_bias=eager, min_new_tokens=7))) == 8
    forever = run_one(batch, [9], regex("[a-z]*", logit_bias=eager, ignore_eos=True))
    assert (len(forever), forever[-1].finish) == (60, FinishReason.LENGTH)
    assert EOS not in ids_of(forever)


def test_a_grammar_outranks_bad_words(batch: PagedRollingBatch, tokenizer: Tokenizer) -> None:
    a, b = tokenizer.token_to_id("a"), tokenizer.token_to_id("b")
    favoured = {a: 50.0}
    assert text_of(tokenizer, run_one(batch, [9], regex("a|b", logit_bias=favoured))) == "a"
    assert text_of(tokenizer, run_one(batch, [9], regex("a|b", logit_bias=favoured, bad_words_ids=((a,),)))) == "b"
    assert text_of(tokenizer, run_one(batch, [9], regex("a|b", bad_words_ids=((a,), (b,))))) in ("a", "b")


def test_rows_of_the_embedding_without_a_token_are_never_drawn(batch: PagedRollingBatch) -> None:
    padding = dict.fromkeys(range(TOKENS, VOCABULARY), 100.0)
    free = run_one(batch, [9], SamplingParams(max_new_tokens=5, logit_bias=padding))
    assert all(token >= TOKENS for token in ids_of(free))
    bound = run_one(batch, [9], regex(r"(?s:.*)", max_new_tokens=20, logit_bias=padding))
    assert all(token < TOKENS for token in ids_of(bound))


def test_logprobs_stay_the_models_own(batch: PagedRollingBatch) -> None:
    free = run_one(batch, [9, 8, 7], SamplingParams(max_new_tokens=1, ignore_eos=True, top_logprobs=VOCABULARY))[0]
    bound = run_one(batch, [9, 8, 7], regex("[a-z]", top_logprobs=VOCABULARY, logit_bias={20: 3.0}))[0]
    assert bound.top == free.top
    assert bound.logprob == dict(free.top)[bound.token_id] < 0


def test_preempted_sequences_keep_their_place_in_the_grammar(checkpoint: Path, tokenizer: Tokenizer) -> None:
    tight = open_batch(checkpoint, max_model_len=128, kv_cache_memory_mb=1)
    tight.scheduler.blocks.__init__(14, 16)  # type: ignore[misc]
    pattern = r"(\d\d\d[a-f][a-f]-){16}"
    for i in range(6):
        tight.add(SequenceRequest([5 + i] * 20, regex(pattern, max_new_tokens=100), id=i))
    events = run_clean(tight)
    assert tight.stats.preemptions > 0
    assert all(re.fullmatch(pattern, text_of(tokenizer, events[i])) for i in range(6))


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("regex", "(ab"), "unclosed group"),
        (Grammar("regex", r"[^\s\S]"), "no text fits it"),
        (Grammar("regex", "a{1000000}"), "too many expressions"),
        (Grammar("regex", "(a{300}){500}"), "too many expressions"),
        (Grammar("json_schema", '{"type":'), "EOF while parsing"),
        (Grammar("json_schema", "[]"), "Expecting object"),
        (Grammar("json_schema", '{"type": "colour"}'), "Invalid type: colour"),
        (Grammar("json_schema", '{"not": {"type": "object"}}'), "Unimplemented keys"),
        (Grammar("json_schema", '{"type": "string", "pattern": "(?=a)b"}'), "look-around"),
    ],
    ids=lambda value: value.source[:40] if isinstance(value, Grammar) else "",
)
def test_a_broken_grammar_costs_its_own_request_only(batch: PagedRollingBatch, grammar: Grammar, reason: str) -> None:
    neighbour = SamplingParams(max_new_tokens=8, ignore_eos=True)
    expected = ids_of(run_one(batch, [9, 8], neighbour))
    batch.add(SequenceRequest([9], SamplingParams(max_new_tokens=8, grammar=grammar), id=2))
    batch.add(SequenceRequest([9, 8], neighbour, id=1))
    events = run_clean(batch)
    assert len(events[2]) == 1
    assert (events[2][0].error or "").startswith("grammar is not valid: ")
    assert events[2][0].error_kind == ParameterError.kind
    assert reason in (events[2][0].error or "")
    assert "\n" not in (events[2][0].error or "")
    assert ids_of(events[1]) == expected


def test_a_broken_grammar_is_told_even_when_the_step_fails(
    batch: PagedRollingBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(chunks: Any) -> Any:
        raise RuntimeError("the model fails")

    batch.add(SequenceRequest([9], SamplingParams(max_new_tokens=8), id=1))
    batch.add(SequenceRequest([9], regex("("), id=2))
    monkeypatch.setattr(batch.runner, "run", fail)
    events: list[TokenEvent] = []
    while not batch.idle:
        try:
            events += batch.step()
        except RuntimeError as exc:
            events += batch.isolate(exc)
    assert sorted(event.request_id for event in events) == [1, 2]


def test_a_model_without_an_end_token_ends_with_the_tokenizers(checkpoint: Path) -> None:
    vocabulary = vocabulary_of(text_tokenizer.Tokenizer.load(checkpoint))
    compiler = GrammarCompiler(VOCABULARY, frozenset())
    compiler.set_vocabulary(msgspec.structs.replace(vocabulary, ends=[EOS]))
    matcher = Matcher(compiler.compile(Grammar("regex", "")).result())
    (end,) = allowed(matcher)
    assert matcher.accept_token(end)
    endless = GrammarCompiler(VOCABULARY, frozenset())
    endless.set_vocabulary(msgspec.structs.replace(vocabulary, ends=[VOCABULARY + 1]))
    with pytest.raises(ParameterError, match="no token of this model ends a text"):
        endless.compile(Grammar("regex", "")).result()


def test_tokens_beyond_the_models_rows_are_not_allowed(checkpoint: Path) -> None:
    compiler = compiler_of(checkpoint, 280, EOS, 290)
    assert allowed(Matcher(compiler.compile(Grammar("regex", "")).result())) == [EOS]
    assert max(allowed(Matcher(compiler.compile(Grammar("regex", r"(?s:.*)")).result()))) < 280


async def test_grammars_work_in_an_engine_process(checkpoint: Path, tokenizer: Tokenizer) -> None:
    """Grammar and bias cross the process, and so does what is wrong with a grammar."""
    config = ModelConfig(name="m", path=str(checkpoint), engine_options={"threads": 1})
    client = await EngineClient.open(
        config, checkpoint, progress=lambda *report: None, on_stats=lambda stats: None, on_death=pytest.fail
    )
    client.set_vocabulary(vocabulary_of(text_tokenizer.Tokenizer.load(checkpoint)))
    ended: dict[str, asyncio.Future[None]] = {}
    events: dict[str, list[TokenEvent]] = {}

    def submit(name: str, params: SamplingParams) -> None:
        ended[name], events[name] = asyncio.get_running_loop().create_future(), []

        def hear(event: TokenEvent) -> None:
            events[name].append(event)
            if event.finish or event.error:
                ended[name].set_result(None)

        client.submit(SequenceRequest([9, 8], params), hear)

    submit("good", regex("[ab]", logit_bias={tokenizer.token_to_id("b"): 100.0}))
    submit("broken", regex("["))
    submit("biased out of the vocabulary", SamplingParams(max_new_tokens=1, logit_bias={VOCABULARY: 1.0}))
    async with asyncio.timeout(30):
        await asyncio.gather(*ended.values())
    await client.close()
    assert text_of(tokenizer, events["good"]) == "b"
    assert "unclosed character class" in (events["broken"][0].error or "")
    assert "outside the vocabulary" in (events["biased out of the vocabulary"][0].error or "")


class SlowTrials:
    """Stands in front of the trials of grammars until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make = Trials.make
        self.go = threading.Event()

        def slow(trials: Trials, attempt: Attempt, grammar: Grammar, limits: TrialLimits) -> Any:
            assert self.go.wait(60)
            return make(trials, attempt, grammar, limits)

        monkeypatch.setattr(Trials, "make", slow)


def test_compiling_stalls_nobody_and_waiting_for_it_is_not_busy(
    batch: PagedRollingBatch, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowTrials(monkeypatch)
    batch.add(SequenceRequest([9], regex("abcd"), id=1))
    batch.add(SequenceRequest([9, 8], SamplingParams(max_new_tokens=8, ignore_eos=True), id=2))
    assert [[event.request_id for event in batch.step()] for _ in range(8)] == [[2]] * 8
    assert not batch.idle
    assert batch.stats.waiting == 1
    began, cpu = time.monotonic(), time.thread_time()
    assert [batch.step() for _ in range(10)] == [[]] * 10
    assert time.thread_time() - cpu < (time.monotonic() - began) / 2
    slow.go.set()
    assert text_of(tokenizer, run_clean(batch)[1]) == "abcd"


def test_a_request_can_be_cancelled_while_its_grammar_is_compiled_and_afterwards(
    batch: PagedRollingBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowTrials(monkeypatch)
    for i in range(3):
        batch.add(SequenceRequest([9], regex("[a-z]{50}-"), id=i))
    batch.cancel(0)
    assert batch.stats.waiting == 2
    slow.go.set()
    while not batch.stats.running:
        batch.step()
    batch.cancel(1)
    batch.cancel(2)
    assert batch.idle
    assert run_clean(batch) == {}


def test_grammars_are_compiled_once_and_the_oldest_are_forgotten(compiler: GrammarCompiler) -> None:
    first, second = (compiler.compile(Grammar("regex", source)) for source in ("first", "second"))
    for number in range(CACHED_GRAMMARS - 1):
        compiler.compile(Grammar("regex", f"other {number}")).result()
        assert compiler.compile(Grammar("regex", "first")) is first
    assert compiler.compile(Grammar("regex", "second")) is not second


def test_the_error_of_a_grammar_does_not_keep_the_grammar(compiler: GrammarCompiler) -> None:
    """It may be large, and errors are cached, too."""
    error = compiler.compile(Grammar("regex", "(a{300}){500}")).exception()
    assert error is not None
    assert error.__traceback__ is None  # its frames would keep what they were working on


def test_a_long_list_of_words_is_not_too_large(compiler: GrammarCompiler) -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnop", k=12)) for _ in range(5000)]
    Matcher(compiler.compile(Grammar("json_schema", json.dumps({"enum": words}))).result())


# ------------------------------------------------------------------------------------------------ dead ends


def test_every_text_of_an_odd_schema_is_an_instance_or_it_is_refused_before(tmp_path: Path) -> None:
    """A grammar that leads into a dead end would fail in the middle of an answer."""
    compiler, octets = byte_compiler(tmp_path)
    outcomes = Counter[str]()
    for seed in range(200):
        draw = random.Random(seed)
        outcomes += outcomes_of(odd_schema(draw), compiler, octets, draw, texts=6)
    assert outcomes["written"] > 450 and outcomes["refused"] > 25 and outcomes["endless"] < 30, outcomes


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (
            {
                "type": "object",
                "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 2}},
                "required": ["score"],
                "patternProperties": {"^score$": {"minimum": 2}},
            },
            {'{"score":2}'},
        ),
        (
            {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "patternProperties": {"^(a|b)$": {}}},
            {"{}", '{"a":1}', '{"b":2}', '{"a":1,"b":2}'},
        ),
        (
            {"properties": {"a": {"const": 1}}, "patternProperties": {"^(a|b)$": {"type": "integer", "maximum": 1}}},
            None,
        ),
        (
            {
                "type": "object",
                "required": ["a"],
                "patternProperties": {"^a$": {"const": 1}},
                "additionalProperties": False,
            },
            {'{"a":1}'},
        ),
        # Data and names are not keywords.
        ({"const": {"patternProperties": {"a": 1}}}, {'{"patternProperties":{"a":1}}'}),
        (
            {"type": "object", "properties": {"patternProperties": {"const": 1}}, "required": ["patternProperties"]},
            {'{"patternProperties":1}'},
        ),
        # Patterns that Python reads differently, or not at all.
        (
            {"type": "object", "required": ["a"], "patternProperties": {"^(?<n>a)$": {"const": 1}}},
            {'{"a":1}'},
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/x"}},
                "minProperties": 1,
                "$defs": {"x": {"const": 1}},
            },
            {'{"a":1}'},
        ),
        # A schema that refers to nothing but itself has no instance, and what needs one is left out.
        ({"properties": {"a": {"$ref": "#/$defs/x"}, "b": {"const": 1}}, "$defs": {"x": {"$ref": "#/$defs/x"}}}, None),
    ],
)
def test_where_a_text_has_nothing_to_go_on_with_it_ends(
    tmp_path: Path, schema: dict[str, Any], texts: set[str] | None
) -> None:
    compiler, octets = byte_compiler(tmp_path)
    compiled = compiler.compile(Grammar("json_schema", json.dumps(closed(schema)))).result()
    draw = random.Random(3)
    answers = [written(Matcher(compiled), octets, draw) for _ in range(60)]
    values = {json.dumps(json.loads(text), separators=(",", ":")) for text in answers if text is not None}
    assert values and (texts is None or values == texts)


@pytest.mark.parametrize("text", ["<s>", "</s>", "a</s>b"])
def test_the_name_of_a_special_token_is_spelled_by_ordinary_ones(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str
) -> None:
    matcher = Matcher(compiler.compile(Grammar("regex", re.escape(text))).result())
    ids: list[int] = []
    while not matcher.accept_token(token := allowed(matcher)[0]):
        ids.append(token)
    assert tokenizer.decode(ids) == text and not {0, 1} & set(ids)


@pytest.mark.parametrize(
    ("begun", "fitting", "wrong"),
    [
        (False, ["ab", "<t>Hm, {\n</t>\n\nab"], ["Hm</t>ab", "<t>Hm", "<t>Hm</t>x", "</t>ab"]),
        (True, ["</t>ab", "Hm <t> </t> ab", "<t>Hm</t>ab"], ["ab", "Hm</t>abc"]),
    ],
)
@pytest.mark.parametrize("special", [False, True])
def test_a_grammar_applies_after_a_text_that_is_free(
    begun: bool, fitting: list[str], wrong: list[str], special: bool
) -> None:
    """Whether the marks around that text are special tokens, or not even tokens."""
    if special:
        fitting = [text for text in fitting if "<t> " not in text]  # such a token is in no text
    marks = {"<t>": 257, "</t>": 258} if special else {}
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>", *map(str.encode, marks)]
    compiler = GrammarCompiler(len(tokens), frozenset({256}))
    compiler.set_vocabulary(Vocabulary(tokens, [256, *marks.values()], [256]))
    before = FreeText(("<s>", "<t>") if not special else ("<t>",), ("</t>", "</s>"), begun=begun)
    for source in (Grammar("regex", "ab", before=before), Grammar("json_schema", '{"const": "ab"}', before=before)):
        for text in fitting + wrong:
            if source.kind == "json_schema":
                text = text.replace("ab", '"ab"')
            pieces = re.split("(</?t>)", text) if special else [text]
            ids = [token for piece in pieces for token in ([marks[piece]] if piece in marks else piece.encode())]
            matcher = Matcher(compiler.compile(source).result())
            try:
                ended = [matcher.accept_token(token) for token in (*ids, 256)][-1]
            except GenerationError:
                ended = False
            assert ended is (text.replace('"', "") in fitting), text
    compiler.close()


def test_masks_of_many_are_the_masks_of_each(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matchers = [Matcher(compiler.compile(Grammar("regex", f"{letter}+[0-9]")).result()) for letter in "abcde"]
    assert tokenizer.token_to_id("a") in allowed(matchers[0])
    matchers[0].accept_token(tokenizer.get_vocab()["a"])
    computer = MaskComputer(2)
    expected = np.concatenate([computer.masks([matcher]) for matcher in matchers])
    assert np.array_equal(computer.masks(matchers), expected)
    assert len({mask.tobytes() for mask in expected}) == 5


def test_a_token_outside_the_grammar_is_an_error(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = Matcher(compiler.compile(Grammar("regex", "ab")).result())
    assert not matcher.accept_token(tokenizer.get_vocab()["a"])
    with pytest.raises(GenerationError, match="can't be followed any further"):
        matcher.accept_token(tokenizer.get_vocab()["x"])


@pytest.mark.parametrize("others", [0, 1])
def test_a_grammar_that_gets_too_costly_is_an_error_and_no_end(checkpoint: Path, others: int) -> None:
    tokens = tokenizer_of(vocabulary_of(text_tokenizer.Tokenizer.load(checkpoint)), VOCABULARY, frozenset({EOS}))
    compiled = CompiledGrammar(tokens, Grammar("json_object"), {})
    definition, limits = LLMatcher.grammar_from_json_schema('{"type": "object"}'), LLParserLimits(step_lexer_fuel=5)
    compiled.beginning = LLMatcher(tokens, definition, limits=limits, log_level=0)
    matchers = [Matcher(compiled) for _ in range(1 + others)]
    with pytest.raises(GenerationError, match="can't be followed any further: lexer error"):
        for _ in range(100):
            mask = MaskComputer(1).masks(matchers)[0]
            token = int(np.unpackbits(mask.view(np.uint8), bitorder="little").argmax())
            for matcher in matchers:
                assert not matcher.accept_token(token)


def test_forbidding_everything_forbids_nothing() -> None:
    mask = np.array([0b1100, 1], np.int32)
    forbid(mask, [2, 5])
    assert mask.tolist() == [0b1000, 1]
    forbid(mask, [3, 32])
    assert mask.tolist() == [0b1000, 1]
