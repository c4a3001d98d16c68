"""What every rolling batch must do, asked of each that is built in."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from djl_python.core.errors import ParameterError
from djl_python.core.registry import load_object
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import FinishReason, SamplingParams, TokenEvent
from djl_python.engine.interface import RollingBatch
from djl_python.engine.row import engine_of
from djl_python.engine.settings import BuiltInSettings
from djl_python.testing import FAKE_ENGINE
from tests.checkpoints import build_checkpoint
from tests.encoder_decoders import build_encoder_decoder
from tests.engines import run_to_end
from tests.threads import come_down_to, threads

Opener = Callable[..., RollingBatch]
ENCODED = "auto (encoder-decoder)"
BACKENDS = ["echo", FAKE_ENGINE, "auto (paged)", "auto (transformers' cache)", ENCODED]
_ARCHITECTURE = {"auto (paged)": "llama", "auto (transformers' cache)": "bloom"}


@pytest.fixture(scope="module", params=BACKENDS)
def opener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opener:
    """Opens batches of one backend."""
    name: str = request.param
    path = tmp_path_factory.mktemp("model")
    if name in _ARCHITECTURE:
        build_checkpoint(path, _ARCHITECTURE[name], sinks=True)
    if name == ENCODED:
        build_encoder_decoder(path, "pegasus")

    def open_batch(max_batch_size: int = 4, max_model_len: int = 64, threads: int = 1) -> RollingBatch:
        settings = BuiltInSettings(
            model_path=str(path),
            max_batch_size=max_batch_size,
            max_model_len=max_model_len,
            threads=threads,
            kv_cache_memory_mb=8,
        )
        batch: RollingBatch = load_object(engine_of(name.split()[0]).opens)(settings, lambda what, done, total: None)
        if name == ENCODED:
            _encode_prompts(batch)
        return batch

    return open_batch


def _encode_prompts(batch: RollingBatch) -> None:
    """Have an encoder read every prompt that the batch's decoder begins with."""
    add = batch.add

    def encoded(request: SequenceRequest) -> None:
        add(msgspec.structs.replace(request, encoder_ids=request.prompt_ids))

    setattr(batch, "add", encoded)  # noqa: B010


@pytest.fixture(scope="module")
def shared(opener: Opener) -> RollingBatch:
    """One batch for the checks that leave nothing behind."""
    return opener()


def is_empty(batch: RollingBatch) -> bool:
    stats = batch.stats
    return batch.idle and (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)


def test_every_token_is_an_event_and_the_last_one_finishes(shared: RollingBatch) -> None:
    shared.add(SequenceRequest([9, 8, 7], SamplingParams(max_new_tokens=5, ignore_eos=True), id=1))
    events = run_to_end(shared)[1]
    assert [e.finish for e in events] == [None] * 4 + [FinishReason.LENGTH]
    assert all(e.token_id >= 0 and e.logprob is not None and e.logprob <= 0 for e in events)
    assert is_empty(shared)


def test_a_sequences_tokens_do_not_depend_on_its_batch(shared: RollingBatch) -> None:
    def requests() -> list[SequenceRequest]:
        rng = random.Random(1)
        return [
            SequenceRequest(
                [rng.randrange(2, 200) for _ in range(rng.randrange(1, 30))],
                SamplingParams(max_new_tokens=rng.randrange(1, 20), do_sample=i % 2 == 1, seed=i),
                id=i,
            )
            for i in range(12)
        ]

    alone: dict[int, list[TokenEvent]] = {}
    for request in requests():
        shared.add(request)
        alone |= run_to_end(shared)
    for request in requests():
        shared.add(request)
    together = run_to_end(shared)
    assert {i: [e.token_id for e in v] for i, v in together.items()} == {
        i: [e.token_id for e in v] for i, v in alone.items()
    }
    assert is_empty(shared)


def test_no_more_than_the_batch_size_run_and_all_get_their_turn(opener: Opener) -> None:
    batch = opener(max_batch_size=2)
    for i in range(5):
        batch.add(SequenceRequest([5 + i], SamplingParams(max_new_tokens=4, ignore_eos=True), id=i))
    running = []
    seen: set[int] = set()
    while not batch.idle:
        seen |= {event.request_id for event in batch.step()}
        running.append(batch.stats.running)
    assert max(running) <= 2
    assert seen == set(range(5))


def test_cancelling_works_anywhere_and_twice(opener: Opener) -> None:
    batch = opener(max_batch_size=2)
    for i in range(4):
        batch.add(SequenceRequest([5 + i], SamplingParams(max_new_tokens=40, ignore_eos=True), id=i))
    batch.step()
    for i in (0, 3, 3, 77):
        batch.cancel(i)
    assert 0 not in {event.request_id for _ in range(3) for event in batch.step()}
    batch.cancel(1)
    batch.cancel(2)
    assert is_empty(batch)


#: A request's prompt and most tokens; a number of steps; or which of the requests so far is cancelled.
_ACTIONS = st.lists(
    st.tuples(st.lists(st.integers(2, 200), min_size=1, max_size=40), st.integers(1, 12))
    | st.integers(1, 4)
    | st.builds(str, st.integers(0, 8)),
    max_size=24,
)


@settings(max_examples=60)
@given(_ACTIONS)
def test_every_request_ends_once_and_leaves_nothing(
    shared: RollingBatch, actions: list[tuple[list[int], int] | int | str]
) -> None:
    """No request is lost, answered twice, or answered after it was cancelled, whoever comes and goes."""
    wanted: dict[int, int] = {}
    cancelled: set[int] = set()
    events: dict[int, list[TokenEvent]] = {}

    def step() -> None:
        for event in shared.step():
            assert event.request_id not in cancelled
            events[event.request_id].append(event)

    for action in actions:
        if isinstance(action, tuple):
            number = len(wanted)
            wanted[number], events[number] = action[1], []
            shared.add(SequenceRequest(action[0], SamplingParams(max_new_tokens=action[1], ignore_eos=True), id=number))
        elif isinstance(action, str):
            if (number := int(action)) in wanted:
                shared.cancel(number)
                cancelled.add(number)
        else:
            for _ in range(action):
                step()
    while not shared.idle:
        step()
    for number, tokens in wanted.items():
        finishes = [event.finish for event in events[number]]
        ended = [None] * (tokens - 1) + [FinishReason.LENGTH]
        assert finishes == (ended[: len(finishes)] if number in cancelled else ended)
    assert is_empty(shared)


def test_the_context_ends_what_max_new_tokens_does_not(shared: RollingBatch) -> None:
    shared.add(SequenceRequest([5] * 60, SamplingParams(max_new_tokens=1000, ignore_eos=True), id=1))
    events = run_to_end(shared)[1]
    assert len(events) == 4
    assert events[-1].finish == FinishReason.LENGTH


@pytest.mark.parametrize("prompt", [[], [5] * 64], ids=["empty", "longer than the context"])
def test_a_prompt_that_fits_never_is_refused(shared: RollingBatch, prompt: list[int]) -> None:
    with pytest.raises(ParameterError):
        shared.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=1), id=1))
    assert is_empty(shared)


def test_stop_tokens_end_with_their_own_reason(shared: RollingBatch) -> None:
    shared.add(SequenceRequest([9, 8, 7], SamplingParams(max_new_tokens=3, ignore_eos=True), id=1))
    tokens = [e.token_id for e in run_to_end(shared)[1]]
    shared.add(
        SequenceRequest([9, 8, 7], SamplingParams(max_new_tokens=3, ignore_eos=True, stop_token_ids=(tokens[0],)), id=2)
    )
    assert [e.finish for e in run_to_end(shared)[2]] == [FinishReason.STOP]


def test_log_probabilities_that_nobody_reads_are_not_told(shared: RollingBatch) -> None:
    for number, reads in enumerate((True, False)):
        shared.add(
            SequenceRequest([9, 8, 7], SamplingParams(max_new_tokens=4, ignore_eos=True, logprobs=reads), id=number)
        )
    read, unread = (events for _, events in sorted(run_to_end(shared).items()))
    assert [e.token_id for e in read] == [e.token_id for e in unread]
    assert all(e.logprob is not None for e in read)
    assert all(e.logprob is None for e in unread)


def test_alternatives_and_prompt_logprobs_come_when_asked_for(shared: RollingBatch) -> None:
    if getattr(shared, "decoder", None) is not None:
        pytest.skip("what an encoder reads has no log-probabilities")
    shared.add(
        SequenceRequest(
            [9, 8, 7], SamplingParams(max_new_tokens=2, ignore_eos=True, top_logprobs=1, prompt_logprobs=1), id=1
        )
    )
    first, second = run_to_end(shared)[1]
    assert first.top[0] == (first.token_id, first.logprob)
    assert len(first.prompt) == 3
    assert first.prompt[0] == (None, ())
    assert all(logprob is not None and len(top) == 1 for logprob, top in first.prompt[1:])
    assert second.prompt == ()


def test_a_closed_batch_leaves_no_threads(opener: Opener) -> None:
    def open_and_close() -> None:
        batch = opener(threads=3)
        batch.add(SequenceRequest([9, 8, 7], SamplingParams(max_new_tokens=2, ignore_eos=True), id=1))
        run_to_end(batch)
        batch.close()
        batch.close()  # who is done twice is done

    open_and_close()
    libraries = threads()  # they have their own from now on
    open_and_close()
    assert come_down_to(libraries)
