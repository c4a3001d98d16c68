"""Prompts are read as fast as those who generate allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.batch.pacing import DECODE_ONLY_EVERY, MIN_TOKENS, PrefillPacer
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch, step_tokens


def test_a_prompt_alone_gets_the_whole_budget() -> None:
    pacer = PrefillPacer(512)
    assert pacer.budget(0) == 512
    assert PrefillPacer(40).budget(0) == 40


def test_of_several_prompts_no_more_than_is_read_well_at_once() -> None:
    pacer = PrefillPacer(2048)
    assert pacer.budget(0, 1) == 2048
    first = pacer.budget(0, 2)
    assert 128 <= first < 2048, "nothing was measured"
    pacer.learn(0, 200, 0.2)
    assert pacer.budget(0, 2) == first, "what decoding takes is not known yet"
    pacer.learn(1, 0, 0.04)
    assert pacer.budget(0, 2) == pacer.budget(0, 32) == 8 * 40
    assert pacer.budget(0, 1) == 2048


def test_the_first_prompt_has_its_token_before_the_last_prompt_is_read(tmp_path: Path) -> None:
    batch = open_batch(build_checkpoint(tmp_path, "llama"), max_batch_size=16, max_prefill_tokens=2048)
    for number in range(16):
        batch.add(SequenceRequest([3 + number] * 100, SamplingParams(max_new_tokens=2, ignore_eos=True), id=number))
    seen = [{event.request_id for event in batch.step()} for _ in range(2)]
    assert 0 in seen[0] and len(seen[0]) < 16
    while not batch.scheduler.idle:
        seen.append({event.request_id for event in batch.step()})
    assert set().union(*seen) == set(range(16))


def test_before_anything_is_read_beside_others_a_step_shows_what_they_take() -> None:
    pacer = PrefillPacer(512)
    assert pacer.budget(3) == 0
    pacer.learn(3, 0, 0.04)
    assert MIN_TOKENS <= pacer.budget(3) < 512, "what a prompt's token takes is not known yet"
    assert pacer.budget(0, 2) == 512


def measured() -> PrefillPacer:
    """A millisecond a token; a step without prompts takes 40 ms alone, 100 ms for eight."""
    pacer = PrefillPacer(512)
    pacer.learn(0, 200, 0.2)
    for _ in range(30):
        pacer.learn(8, 0, 0.1)
        pacer.learn(1, 0, 0.04)
    return pacer


def test_a_step_is_stretched_by_what_was_measured() -> None:
    pacer = measured()
    assert pacer.budget(1) == pytest.approx(1.8 * 40, abs=1)
    assert pacer.budget(8) == pytest.approx(1.8 * 100, abs=1)
    for _ in range(40):
        pacer.learn(1, 50, 0.04 + 50 * 0.002)  # tokens have become dearer: a longer context
    assert pacer.budget(1) == pytest.approx(1.8 * 20, abs=1)


def test_steps_that_measure_nothing_change_no_budget() -> None:
    pacer = PrefillPacer(512)
    pacer.learn(1, 100, 1.0)  # beside a step of unknown length
    pacer.learn(8, 0, 0.1)
    assert pacer.budget(1) == 64, "what a prompt's token takes is not known"
    pacer.learn(0, 200, 0.2)
    expected = pacer.budget(1)
    assert expected == pytest.approx(1.8 * 100, abs=1)
    for _ in range(300):
        pacer.learn(0, 200, 0.2)  # nobody waited for these
    for _ in range(20):
        pacer.learn(8, 3, 0.2)  # so few tokens do not make a difference
        pacer.learn(8, 50, 0.09)  # no step is shorter for having prompts
    assert pacer.budget(1) == expected


def test_a_queue_is_read_a_little_faster() -> None:
    pacer = measured()
    assert pacer.budget(8, 3) == pacer.budget(8, 1)
    assert pacer.budget(8, 5) == pytest.approx(2.4 * 100, abs=1)
    assert pacer.budget(8, 500) == pytest.approx(3 * 100, abs=1)


def test_between_what_was_measured_lies_what_was_not() -> None:
    pacer = measured()
    assert pacer.budget(3) == pytest.approx(1.8 * (40 + 60 * 2 / 7), abs=1)
    assert pacer.budget(20) == pacer.budget(8)


def test_a_slower_machine_is_noticed_though_every_step_has_prompts() -> None:
    """Else the dearer step would be put down to the prompt, which would be read ever more slowly."""
    pacer = measured()
    for _ in range(400):
        tokens = pacer.budget(8)
        pacer.learn(8, tokens, 3 * (0.1 + 0.001 * tokens))
    assert max(pacer.budget(8) for _ in range(2)) >= 150


def test_now_and_then_a_step_has_no_prompts_to_show_what_it_takes() -> None:
    pacer = measured()
    for _ in range(2):
        steps = 0
        while tokens := pacer.budget(8):
            pacer.learn(8, tokens, 0.1 + 0.001 * tokens)
            steps += 1
        assert steps == DECODE_ONLY_EVERY
        pacer.learn(8, 0, 0.1)


def test_where_nearly_every_step_has_prompts_they_are_read_faster() -> None:
    pacer = measured()
    taken = []
    for _ in range(1000):
        tokens = pacer.budget(1)
        taken.append(0.04 + 0.001 * tokens)
        pacer.learn(1, tokens, taken[-1])
    assert taken[100] == pytest.approx(2.8 * 0.04, rel=0.05), "not before it has become usual"
    assert max(taken) == pytest.approx(8 * 0.04, rel=0.05), "and not without bounds"


def test_now_and_then_a_long_prompt_makes_no_haste() -> None:
    pacer = measured()
    for step in range(1000):
        tokens = pacer.budget(1) if step % 100 < 60 else 0
        pacer.learn(1, tokens, 0.04 + 0.001 * tokens)
    assert pacer.budget(1) == pytest.approx(1.8 * 40, abs=3)


def test_a_budget_is_never_too_small_to_be_worth_it_nor_more_than_the_setting() -> None:
    pacer = PrefillPacer(512)
    pacer.learn(0, 100, 1.0)
    pacer.learn(1, 0, 1e-4)
    assert pacer.budget(1) == pacer.budget(0, 2) == MIN_TOKENS
    pacer.learn(4, 0, 1e3)
    assert pacer.budget(4) == 512
    pacer = PrefillPacer(40)
    assert pacer.budget(0, 2) == 40
    pacer.learn(1, 0, 0.04)
    assert pacer.budget(1) == 40
    pacer.learn(0, 200, 0.02)
    assert pacer.budget(1) == pacer.budget(0, 2) == 40


def test_a_long_prompt_is_read_beside_a_sequence_that_goes_on(tmp_path: Path) -> None:
    batch = open_batch(build_checkpoint(tmp_path, "llama"), max_prefill_tokens=100)
    batch.add(SequenceRequest([3, 4, 5], SamplingParams(max_new_tokens=60, ignore_eos=True), id=0))
    batch.add(SequenceRequest([3, 4, 5], SamplingParams(max_new_tokens=60, ignore_eos=True), id=2))
    for _ in range(10):
        batch.step()
    batch.add(SequenceRequest([6] * 180, SamplingParams(max_new_tokens=2), id=1))
    advanced = [[event.request_id for event in batch.step()]]
    while 1 not in advanced[-1]:
        advanced.append([event.request_id for event in batch.step()])
    assert len(advanced) > 1
    assert all(0 in ids for ids in advanced)
    assert step_tokens(batch) <= 102
