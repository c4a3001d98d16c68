"""The simulation, in a small form: what docs/scale.md says of it holds, and simulated replicas keep their accounts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from djl_python.server.models.routing.trail import trail_of
from tests.simulation.chats import BYTES_PER_TOKEN, Traffic
from tests.simulation.cluster import POLICIES, Loss, Result, simulate
from tests.simulation.replica import Engine, PrefixCache
from tests.simulation.scale import routing_rows

TRAFFIC = replace(Traffic(), chats_per_s=0.5)


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {policy: simulate(policy, 8, until_s=100, traffic=TRAFFIC).between(50, 100) for policy in POLICIES}


def test_routing_by_prefixes_finds_more_in_caches_and_answers_sooner(results: dict[str, Result]) -> None:
    random, least_busy, prefix = (results[policy] for policy in POLICIES)
    assert prefix.hit_rate > 0.85 > 0.7 > max(random.hit_rate, least_busy.hit_rate)
    assert prefix.ttft_s(0.5) < least_busy.ttft_s(0.5) <= 1.1 * random.ttft_s(0.5)
    assert prefix.ttft_s(0.99) < least_busy.ttft_s(0.99) < random.ttft_s(0.99)


def test_a_run_is_repeated_from_its_seed(results: dict[str, Result]) -> None:
    again = simulate("prefix", 8, until_s=100, traffic=TRAFFIC).between(50, 100)
    assert [turn.first_s for turn in again.turns] == [turn.first_s for turn in results["prefix"].turns]


def test_the_documents_table_is_what_is_computed() -> None:
    """One row of it; the others take as much longer as there are more requests."""
    (row,) = routing_rows(2, "moderate", ["prefix"])
    text = (Path(__file__).parents[2] / "djl_python" / "docs" / "scale.md").read_text(encoding="utf-8")
    assert f"\n{row}\n" in text


def test_a_lost_replicas_requests_are_asked_again_and_its_prompts_computed_again() -> None:
    runs = [simulate("prefix", 3, until_s=120, losses=losses) for losses in ((), (Loss(60, 20),))]
    without, lost = (run.between(60, 120) for run in runs)
    assert (without.asked_again, lost.asked_again > 0) == (0, True)
    assert lost.computed_tokens > without.computed_tokens
    assert len(runs[1].turns) >= len(runs[0].turns) - 5


def test_all_that_is_asked_is_answered_once() -> None:
    result = simulate("prefix", 2, until_s=400, traffic=replace(TRAFFIC, chats_per_s=0.02), losses=[Loss(200, 10)])
    times = [(turn.arrived_s, turn.first_s) for turn in result.turns]
    assert len(set(times)) == len(times) > 20
    assert all(arrived_s < first_s < arrived_s + 30 for arrived_s, first_s in times)
    assert all(0 <= turn.cached < turn.prompt_tokens for turn in result.turns)


def test_a_lone_prompt_takes_the_steps_that_its_tokens_take() -> None:
    engine = Engine(step_s=0.01, decode_s=0.0, prefill_s=0.001, prefill_tokens=100)
    first = simulate("random", 1, until_s=500, traffic=replace(TRAFFIC, chats_per_s=0.01), engine=engine).turns[0]
    steps = -(-first.prompt_tokens // 100)
    assert first.first_s - first.arrived_s == pytest.approx(0.01 * steps + 0.001 * first.prompt_tokens)


def test_a_full_cache_forgets_what_was_used_least_recently_from_its_end() -> None:
    cache = PrefixCache(1000)
    prompts = [trail_of([b"%02d" % number * 128 * BYTES_PER_TOKEN]) for number in range(5)]  # 256 tokens each
    for prompt in prompts[:3]:
        cache.add(prompt, running=0)
    cache.add(prompts[0], running=0)
    cache.add(prompts[3], running=0)
    assert [cache.known(prompt) for prompt in prompts] == [256, 192, 256, 256, 0]
    cache.add(prompts[4], running=1000)
    assert [cache.known(prompt) for prompt in prompts] == [0] * 5
