"""Speculation changes how fast a text comes, never the text."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import Grammar, SamplingParams, TokenEvent
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.scheduler import MAX_DRAFT_ROWS
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.drafting import draft_model, speculation_setup
from djl_python.engine.drafting.ngram import NgramDrafter
from djl_python.engine.drafting.speculation import Confidence, Speculation
from djl_python.engine.native.library import library
from djl_python.engine.native.opening import native_program
from djl_python.engine.opening.open_model import open_model
from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.reading.recipe.primitives import NotUnderstoodError
from djl_python.engine.runner.opened_model import OpenedModel
from tests.checkpoints import VOCABULARY, build_checkpoint
from tests.engine.checkpoints.test_rope import ORIGINAL, longrope, prompt, save
from tests.engines import damage_, open_batch, run_to_end
from tests.kernels import kernels_or_skip
from tests.quantized_checkpoints import Method, write_quantized

LOOP = [5, 9, 12, 7, 31, 8] * 6


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another architecture with the same vocabulary: its guesses are mostly wrong."""
    return build_checkpoint(tmp_path_factory.mktemp("draft"), "qwen2")


@pytest.fixture
def timeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model takes no time: its drafts pay, whatever else the machine does."""
    monkeypatch.setattr(draft_model, "time", SimpleNamespace(perf_counter=lambda: 1.0))


def speculation(batch: PagedRollingBatch) -> tuple[int, int]:
    return batch.stats.draft_tokens, batch.stats.accepted_draft_tokens


REQUESTS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 3},
    {"do_sample": True, "seed": 4, "temperature": 0.4, "top_p": 0.8},
    {"do_sample": True, "seed": 5, "top_k": 3},
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 0.6, "do_sample": True, "seed": 6},
    {"min_new_tokens": 9, "ignore_eos": False},
    {"logit_bias": {7: 4.0}},
    {"top_logprobs": 3},
    {"prompt_logprobs": 1},
    {"bad_words_ids": ((7,), (9, 12))},
    {"stop_token_ids": (12,)},
]


def answers(batch: PagedRollingBatch, requests: list[dict[str, Any]], seed: int = 0) -> dict[int, list[TokenEvent]]:
    """All requests, arriving a few steps apart."""
    rng = random.Random(seed)
    waiting = list(enumerate(requests))
    events: dict[int, list[TokenEvent]] = {number: [] for number, _ in waiting}
    while waiting or not batch.idle:
        if waiting and (batch.idle or rng.random() < 0.3):
            number, params = waiting.pop(0)
            prompt = [*LOOP, number + 2, number + 3] if number % 2 else [rng.randrange(VOCABULARY) for _ in range(40)]
            batch.add(
                SequenceRequest(
                    prompt, SamplingParams(**{"max_new_tokens": 40, "ignore_eos": True, **params}), id=number
                )
            )
        for event in batch.step():
            events[event.request_id].append(event)
    return events


def told(events: dict[int, list[TokenEvent]]) -> dict[int, list[Any]]:
    return {
        number: [(e.token_id, e.finish, [i for i, _ in e.top], len(e.prompt), e.error) for e in sequence_events]
        for number, sequence_events in events.items()
    }


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("how", ["ngram", "same", "other"])
def test_every_request_gets_what_it_gets_without(path: Path, other: Path, how: str, kernels: str) -> None:
    requests = REQUESTS * 2
    plain = answers(open_batch(path, kernels=kernels, max_batch_size=6), requests)
    settings = (
        {"speculative": "ngram"}
        if how == "ngram"
        else {"speculative": "draft", "draft_model_path": str(path if how == "same" else other)}
    )
    batch = open_batch(path, kernels=kernels, max_batch_size=6, **settings)
    assert told(answers(batch, requests)) == told(plain)
    proposed, accepted = speculation(batch)
    assert proposed > 10
    if how == "same":
        assert accepted > 0.95 * proposed
    assert batch.stats.kv_blocks_used == 0


def test_log_probabilities_are_the_models_own(path: Path) -> None:
    plain = answers(open_batch(path), [{}])[0]
    made = answers(open_batch(path, speculative="draft", draft_model_path=str(path)), [{}])[0]
    assert [e.logprob for e in made] == pytest.approx([e.logprob for e in plain], abs=1e-4)


@pytest.mark.parametrize("how", ["ngram", "draft"])
def test_a_text_that_repeats_itself_takes_fewer_steps(path: Path, how: str) -> None:
    settings = {"speculative": how, "draft_model_path": str(path)}
    batch = open_batch(path, **settings)
    # With such a bias the model goes on saying one token.
    batch.add(SequenceRequest(LOOP, SamplingParams(max_new_tokens=80, ignore_eos=True, logit_bias={7: 1000.0}), id=0))
    steps = tokens = 0
    while not batch.idle:
        tokens += len(batch.step())
        steps += 1
    assert tokens == 80
    assert steps < 30


@pytest.mark.usefixtures("timeless")
def test_out_of_blocks_drafts_give_way(path: Path) -> None:
    """Few blocks, so that sequences are preempted and begin again."""
    settings = {"max_batch_size": 6, "kv_blocks": 8, "max_model_len": 96}
    plain = answers(open_batch(path, **settings), REQUESTS[:6])
    for how in ("ngram", "draft"):
        batch = open_batch(path, speculative=how, draft_model_path=str(path), **settings)
        assert told(answers(batch, REQUESTS[:6])) == told(plain)
        assert batch.stats.preemptions > 0
    proposed, accepted = speculation(batch)
    assert accepted > 0.95 * proposed > 10, "also by what was read again, of those that began again"


def test_limits_end_a_text_in_the_middle_of_its_drafts(path: Path) -> None:
    batch = open_batch(path, speculative="draft", draft_model_path=str(path), max_model_len=64)
    batch.add(SequenceRequest(LOOP, SamplingParams(max_new_tokens=5, ignore_eos=True), id=0))
    batch.add(SequenceRequest(LOOP, SamplingParams(max_new_tokens=1000, ignore_eos=True), id=1))
    events = run_to_end(batch)
    assert len(events[0]) == 5
    assert len(events[1]) == 64 - len(LOOP)


def test_a_text_may_be_longer_than_the_draft_models(path: Path, tmp_path: Path) -> None:
    short = Path(shutil.copytree(path, tmp_path / "short"))
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    plain = answers(open_batch(path), [{"max_new_tokens": 150}] * 3)
    made = answers(open_batch(path, speculative="draft", draft_model_path=str(short)), [{"max_new_tokens": 150}] * 3)
    assert told(made) == told(plain)


class SamplingRequest(NgramDrafter):
    """Notes how many drafts it is asked for, and has none."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: dict[int, int] = {}

    def propose(self, sequences: Any, ahead: Any) -> dict[int, tuple[int, ...]]:
        self.ahead |= {sequence.id: most for sequence, most in zip(sequences, ahead, strict=True)}
        return {}


def asked_for(chunks: list[SequenceChunk], longest: int = 100) -> dict[int, int]:
    drafter = SamplingRequest()
    assert Speculation(drafter, 8, longest).add_drafts(chunks, lambda chunk, drafts: drafts) == chunks
    return drafter.ahead


def decoding(number: int = 0, generated: int = 1, **params: Any) -> SequenceChunk:
    """A sequence that has generated something."""
    sampling = SamplingParams(**{"max_new_tokens": 30, **params})
    tokens = [*LOOP, *[5] * generated]
    return SequenceChunk(Sequence(number, tokens, len(LOOP), sampling, computed=len(tokens) - 1), 1)


@pytest.mark.parametrize(
    "params",
    [
        {"grammar": Grammar("regex", "a*")},
        {"bad_words_ids": ((7,),)},
        {"repetition_penalty": 1.1},
        {"presence_penalty": -0.1},
        {"frequency_penalty": 0.1},
        {"min_new_tokens": 4},
        {"prompt_logprobs": 0},
        {"max_new_tokens": 4},
    ],
    ids=lambda params: next(iter(params)),
)
def test_sequences_that_can_not_use_drafts_ask_for_none(params: dict[str, Any]) -> None:
    assert asked_for([decoding(generated=3, **params)]) == {}


@pytest.mark.parametrize(
    ("params", "longest", "expected"),
    [({}, 100, 8), ({"min_new_tokens": 3}, 100, 8), ({"max_new_tokens": 6}, 100, 2), ({}, len(LOOP) + 8, 4)],
)
def test_drafts_go_no_further_than_the_text(params: dict[str, Any], longest: int, expected: int) -> None:
    """After the last draft comes one more token."""
    assert asked_for([decoding(generated=3, **params)], longest) == {0: expected}


@pytest.mark.parametrize(("together", "ahead"), [(1, 8), (2, 7), (3, 4), (8, 1), (9, 1), (15, 1), (16, 0), (17, 0)])
def test_drafts_are_few_where_many_rows_share_a_step(together: int, ahead: int) -> None:
    drafts = asked_for([decoding(number) for number in range(together)])
    assert list(drafts.values()) == [ahead] * min(together, MAX_DRAFT_ROWS - together)


def test_a_prompt_that_is_read_beside_it_leaves_a_sequence_fewer_drafts() -> None:
    prompt = Sequence(1, LOOP, len(LOOP), SamplingParams(max_new_tokens=9))
    assert asked_for([decoding(), SequenceChunk(prompt, 10)]) == {0: 5}


def test_a_full_batch_has_no_drafts(path: Path) -> None:
    batch = open_batch(path, speculative="ngram", max_batch_size=MAX_DRAFT_ROWS)
    for number in range(MAX_DRAFT_ROWS):
        batch.add(SequenceRequest(LOOP, SamplingParams(max_new_tokens=8, ignore_eos=True), id=number))
    run_to_end(batch)
    assert speculation(batch) == (0, 0)


@pytest.mark.usefixtures("timeless")
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_draft_model_reads_what_was_generated_without_it(path: Path, kernels: str) -> None:
    """A full batch has no drafts; a chat that goes on has its blocks as a prefix."""
    batch = open_batch(
        path, kernels=kernels, speculative="draft", draft_model_path=str(path), max_batch_size=MAX_DRAFT_ROWS + 1
    )
    prompts = [[*LOOP[:8], number + 2] for number in range(MAX_DRAFT_ROWS + 1)]
    for number, begin in enumerate(prompts):
        batch.add(SequenceRequest(begin, SamplingParams(max_new_tokens=80, ignore_eos=True), id=number))
    said = [event.token_id for event in run_to_end(batch)[0]]
    before = speculation(batch)  # a few, of those that came first
    batch.add(
        SequenceRequest(
            [*prompts[0], *said, 7], SamplingParams(max_new_tokens=40, ignore_eos=True), id=MAX_DRAFT_ROWS + 1
        )
    )
    run_to_end(batch)
    proposed, accepted = (after - earlier for after, earlier in zip(speculation(batch), before, strict=True))
    assert proposed > 20
    assert accepted > 0.95 * proposed


def test_a_draft_model_reads_every_token_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a chat that goes on: the turns before are in its cache, as they are in the model's."""
    batch = open_batch(path, speculative="draft", draft_model_path=str(path))
    assert batch.speculation is not None
    drafter = batch.speculation.drafter
    assert isinstance(drafter, draft_model.ModelDrafter)
    run, read = drafter.runner.run, 0

    def counting(chunks: list[SequenceChunk]) -> torch.Tensor:
        nonlocal read
        read += sum(chunk.length for chunk in chunks)
        return run(chunks)

    monkeypatch.setattr(drafter.runner, "run", counting)
    text = list(LOOP)
    for number in range(3):
        batch.add(SequenceRequest(text, SamplingParams(max_new_tokens=40, ignore_eos=True), id=number))
        text = [*text, *(event.token_id for event in run_to_end(batch)[number]), 7]
    assert read < 1.2 * len(text)


@pytest.mark.parametrize(
    ("tokens", "follow"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4], (5, 6, 7, 1, 2)),
        ([8, 9, 8, 9, 8, 9], (8, 9, 8, 9, 8)),
        ([7, 7, 7], (7, 7, 7, 7, 7)),
        ([3, 4, 5, 3, 4, 6, 3, 4], (6, 3, 4, 6, 3)),  # the last time
        ([1, 2, 3, 4, 5, 9, 3, 4, 6, 1, 2, 3, 4], (5, 9, 3, 4, 6)),  # after the longer match
        ([1, 2, 3], None),
        ([1, 1], None),
    ],
)
def test_lookup_goes_on_with_what_followed_the_last_time(tokens: list[int], follow: tuple[int, ...] | None) -> None:
    """As far as it seems worth it: five tokens, while nothing is known."""
    drafter = NgramDrafter()
    for end in (2, len(tokens)):  # a text that grows
        sequence = Sequence(0, tokens[:end], 1, SamplingParams(max_new_tokens=9))
        drafts = drafter.propose([sequence], [8]).get(0)
    assert drafts == follow


@pytest.mark.parametrize("tokens", [LOOP, [5, 9, 1, 2, 3, 5, 9]], ids=["a long match", "a short one"])
def test_lookup_that_is_wrong_is_given_up(tokens: list[int]) -> None:
    drafter, sequence = NgramDrafter(), Sequence(0, tokens, 1, SamplingParams(max_new_tokens=9))
    proposed = []
    for _ in range(60):
        drafts = drafter.propose([sequence], [8]).get(0, ())
        proposed.append(len(drafts))
        if drafts:
            drafter.learn(sequence, len(drafts), 0)
    assert proposed[0] == 5
    assert sum(proposed[20:]) <= 2


def test_lookup_forgets_a_text_that_has_ended(path: Path) -> None:
    batch = open_batch(path, speculative="ngram")
    for length in (40, 20):
        sampling = SamplingParams(max_new_tokens=length, ignore_eos=True, logit_bias={7: 1000.0})
        batch.add(SequenceRequest(LOOP[:4], sampling, id=0))
        assert [event.token_id for event in run_to_end(batch)[0]] == [7] * length


def test_drafts_that_are_wrong_are_given_up_and_tried_again() -> None:
    confidence = Confidence()
    assert confidence.worth(8) > 2
    for _ in range(40):
        confidence.learn(2, 0)
    tried = [confidence.worth(8) for _ in range(240)]
    assert sum(tried) == 10
    for _ in range(40):
        confidence.learn(1, 1)
    assert confidence.worth(8) == 8
    for _ in range(20):
        confidence.learn(1, 0)
    assert confidence.worth(8) == 0


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_draft_model_whose_scores_are_no_numbers_is_only_wrong(path: Path, kernels: str, tmp_path: Path) -> None:
    draft = damage_(build_checkpoint(tmp_path, "llama"), LOOP[0])
    text = [token for token in range(2, 60) if token != LOOP[0]]  # or it would be refused when it is opened
    batch = open_batch(path, kernels=kernels, speculative="draft", draft_model_path=str(draft), probe_ids=text)
    assert told(answers(batch, REQUESTS)) == told(answers(open_batch(path, kernels=kernels), REQUESTS))
    proposed, accepted = speculation(batch)
    assert proposed > accepted


def test_a_draft_model_with_another_vocabulary_is_refused(path: Path, tmp_path: Path) -> None:
    import json

    small = build_checkpoint(tmp_path, "llama")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = json.loads((small / "config.json").read_text())
    LlamaForCausalLM(LlamaConfig(**{**config, "vocab_size": 300})).save_pretrained(small)
    with pytest.raises(ModelLoadError, match=r"option\.draft_model_id: its vocabulary has 300 tokens, the model's 320"):
        open_batch(path, speculative="draft", draft_model_path=str(small))


def test_a_draft_model_with_states_is_refused(path: Path, tmp_path: Path) -> None:
    hybrid = build_checkpoint(tmp_path, "lfm2")
    with pytest.raises(ModelLoadError, match=r"option\.draft_model_id: .* can be truncated .* Lfm2ForCausalLM"):
        open_batch(path, speculative="draft", draft_model_path=str(hybrid))


def test_a_draft_model_is_closed_with_the_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[OpenedModel] = []

    def opening(*given: Any) -> OpenedModel:
        opened = open_model(*given)

        def close() -> None:
            opened.close()
            closed.append(opened)

        return replace(opened, close=close)

    monkeypatch.setattr(speculation_setup, "open_model", opening)
    batch = open_batch(path, speculative="draft", draft_model_path=str(path))
    assert not closed
    batch.close()
    assert len(closed) == 1


def test_a_draft_model_need_not_be_quantized_as_the_model_is(path: Path, tmp_path: Path) -> None:
    quantized = write_quantized(path, tmp_path / "quantized", Method("gptq", symmetric=True))
    batch = open_batch(quantized, quantize="gptq", speculative="draft", draft_model_path=str(path), dtype="fp32")
    assert answers(batch, [{}])[0]


def test_a_draft_model_on_kernels_leaves_torch_its_threads(
    path: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a model that only torch can run."""
    kernels_or_skip(library)

    def read(model: Any, context: int) -> Any:
        if isinstance(model, LlamaForCausalLM):
            raise NotUnderstoodError("this one")
        return read_recipe(model, context)

    monkeypatch.setattr(native_program, "read_recipe", read)
    try:
        batch = open_batch(path, speculative="draft", draft_model_path=str(other), threads=2)
        assert "native products" in batch.description
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("draft_s", "least", "most"), [(0.1, 60, 70), (20.0, 6, 10)])
def test_a_draft_model_that_takes_longer_than_it_saves_is_seldom_asked(
    path: Path, draft_s: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 80 tokens, by a model that takes ten seconds for each step."""
    now = 0.0

    def taking(seconds: float, run: Any) -> Any:
        def timed(chunks: list[SequenceChunk]) -> torch.Tensor:
            nonlocal now
            now += seconds
            return run(chunks)  # type: ignore[no-any-return]

        return timed

    monkeypatch.setattr(draft_model, "time", SimpleNamespace(perf_counter=lambda: now))
    batch = open_batch(path, speculative="draft", draft_model_path=str(path))
    assert batch.speculation is not None
    drafter: Any = batch.speculation.drafter
    monkeypatch.setattr(drafter.runner, "run", taking(draft_s, drafter.runner.run))
    monkeypatch.setattr(batch.runner, "run", taking(10.0, batch.runner.run))
    batch.add(SequenceRequest(LOOP, SamplingParams(max_new_tokens=80, ignore_eos=True), id=0))
    run_to_end(batch)
    proposed, accepted = speculation(batch)
    assert least <= proposed <= most
    assert accepted > 0.95 * proposed


@pytest.mark.usefixtures("timeless")
def test_a_draft_model_follows_where_positions_turn_otherwise(tmp_path: Path) -> None:
    """LongRoPE, beyond its first length: the same model drafts what it will say itself."""
    model = save(tmp_path, longrope())
    batch = open_batch(model, speculative="draft", draft_model_path=str(model), max_prefill_tokens=256)
    batch.add(SequenceRequest(prompt(150), SamplingParams(max_new_tokens=60, ignore_eos=True), id=0))
    run_to_end(batch)
    proposed, accepted = speculation(batch)
    assert proposed == accepted > 40


@pytest.mark.parametrize("how", ["ngram", "draft"])
def test_drafts_end_where_positions_begin_to_turn_otherwise(how: str, tmp_path: Path) -> None:
    """LongRoPE, across its first length: what follows is drawn from a text that was recomputed."""
    kernels_or_skip(library)
    model = save(tmp_path, longrope())
    runs: list[list[TokenEvent]] = []
    without: dict[str, str] = {}
    for settings in (without, {"speculative": how, "draft_model_path": str(model)}):
        batch = open_batch(model, **settings)
        for number, length in enumerate(range(ORIGINAL - 6, ORIGINAL + 1)):
            params = SamplingParams(max_new_tokens=12, ignore_eos=True, logit_bias={7: 12.0})
            batch.add(SequenceRequest((LOOP * 2)[:length], params, id=number))
        events = run_to_end(batch)
        runs.append([event for number in sorted(events) for event in events[number]])
    assert speculation(batch)[1] > 5
    plain, made = runs
    assert [e.token_id for e in made] == [e.token_id for e in plain]
    assert [e.logprob for e in made] == pytest.approx([e.logprob for e in plain], abs=1e-4)


def test_where_drafts_can_not_be_taken_back_they_are_not_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    batch = open_batch(build_checkpoint(tmp_path, "mamba"), speculative="ngram")
    batch.add(SequenceRequest(LOOP, SamplingParams(max_new_tokens=9, ignore_eos=True), id=0))
    assert len(run_to_end(batch)[0]) == 9
    assert speculation(batch) == (0, 0)
    assert "option.speculative=ngram has no effect" in caplog.text


def repeating(batch: PagedRollingBatch, monkeypatch: pytest.MonkeyPatch) -> PagedRollingBatch:
    """The batch, with steps that fail handled as the engine's loop does."""
    step = batch.step

    def handled() -> list[TokenEvent]:
        try:
            return step()
        except Exception as cause:
            return batch.isolate(cause)

    monkeypatch.setattr(batch, "step", handled)
    return batch


def test_a_drafter_that_fails_costs_a_step_and_no_request(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = told(answers(open_batch(path), [{}, {}, {}]))
    batch = repeating(open_batch(path, speculative="ngram"), monkeypatch)
    propose, failures = NgramDrafter.propose, iter([True])

    def failing(drafter: NgramDrafter, sequences: Any, ahead: Any) -> Any:
        if len(sequences) > 1 and next(failures, False):
            raise RuntimeError("no idea")
        return propose(drafter, sequences, ahead)

    monkeypatch.setattr(NgramDrafter, "propose", failing)
    assert told(answers(batch, [{}, {}, {}])) == expected
    assert next(failures, False) is False


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_memory_that_runs_out_while_drafts_are_checked_costs_a_step_and_no_request(
    path: Path, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but one sequence stay where they were, and are drafted for again."""
    monkeypatch.setattr(draft_model, "time", SimpleNamespace(perf_counter=lambda: 1.0))  # so that drafts always pay
    expected = told(answers(open_batch(path, kernels=kernels), [{}, {}, {}]))
    batch = open_batch(path, kernels=kernels, speculative="draft", draft_model_path=str(path))
    run, failures = batch.runner.run, iter([True])

    def failing(chunks: Any) -> Any:
        if len(chunks) > 1 and chunks[0].drafts and next(failures, False):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(chunks)

    monkeypatch.setattr(batch.runner, "run", failing)
    assert told(answers(repeating(batch, monkeypatch), [{}, {}, {}])) == expected
    assert next(failures, False) is False
    proposed, accepted = speculation(batch)
    assert accepted > 0.95 * proposed
