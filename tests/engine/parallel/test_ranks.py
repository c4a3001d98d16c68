"""A model that two processes share, behind a client: real engine processes, of which a rank may fail or die."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import pytest
import pytest_asyncio
import torch

from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams, TokenEvent
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.client import EngineClient
from djl_python.engine.parallel.ranks import Followed, Piece, piece_of
from djl_python.engine.runner.model_runner import rows_of
from djl_python.ipc.protocol import AdapterChange
from tests.checkpoints import build_checkpoint
from tests.engines import Listener, Sink, open_batch, run_to_end
from tests.peft_adapters import PEFT_WARNS, save_adapter
from tests.processes import until_ended

pytestmark = [
    PEFT_WARNS,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two GPUs share a model, or processors without any"),
]

_SHARED: Final[dict[str, Any]] = {"tensor_parallel_degree": 2, "dtype": "fp32", "device": "cpu"}
_STAGES: Final[dict[str, Any]] = {"pipeline_parallel_degree": 2, "dtype": "fp32", "device": "cpu"}
_REPEATING: Final = [5, 6, 7, 8, 9] * 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Adapters of all linears of the layers, and of the embedding, the head and linears that are divided either way."""
    folder = tmp_path_factory.mktemp("adapters")
    ends = ["embed_tokens", "lm_head", "up_proj", "o_proj"]
    save_adapter(checkpoint, folder / "layers", 1)
    save_adapter(checkpoint, folder / "ends", 2, r=2, target_modules=ends)
    return {name: str(folder / name) for name in ("layers", "ends")}


@pytest.fixture(scope="module", autouse=True)
def _meetings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is left of the places where ranks met, however they ended."""
    folder = tmp_path_factory.mktemp("meetings")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TMPDIR", str(folder))
        yield
    assert list(folder.iterdir()) == []


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[pytest.param(_SHARED, id="layers"), pytest.param(_STAGES, id="stages", marks=pytest.mark.slow)],
)
async def shared(
    checkpoint: Path, adapters: dict[str, str], request: pytest.FixtureRequest
) -> AsyncIterator[tuple[EngineClient, Listener]]:
    listener = Listener()
    client = await listener.open(
        checkpoint,
        **request.param,
        speculative="ngram",
        max_rolling_batch_prefill_tokens=24,
        adapters=adapters,
        enable_lora=True,
        max_loras=2,
    )
    yield client, listener
    ranks = psutil.Process(client.pid).children()
    assert len(ranks) == 1
    await client.close()
    await until_ended(*ranks)
    assert listener.deaths == []


def scores_of(events: list[TokenEvent]) -> list[float]:
    """Log-probabilities of the prompt's tokens, if they were asked for, and of those generated."""
    of_prompt = [score for score, _ in events[0].prompt if score is not None]
    return [*of_prompt, *(event.logprob for event in events if event.logprob is not None)]


async def test_answers_are_those_of_one_device(checkpoint: Path, shared: tuple[EngineClient, Listener]) -> None:
    """Also of several prompts in pieces, with drafts, scores of the prompt, and drawn with a seed."""
    client, listener = shared
    assert client.limits.description.endswith("shared by 2 devices")
    requests = [
        (_REPEATING, SamplingParams(max_new_tokens=80, ignore_eos=True)),
        ([9, 8, 7] * 20, SamplingParams(max_new_tokens=9, ignore_eos=True, do_sample=True, seed=3)),
        ([4], SamplingParams(max_new_tokens=5, ignore_eos=True, top_logprobs=2)),
        (_REPEATING, SamplingParams(max_new_tokens=3, ignore_eos=True, prompt_logprobs=1)),
    ]
    sinks = [Sink() for _ in requests]
    for (prompt, sampling), sink in zip(requests, sinks, strict=True):
        client.submit(SequenceRequest(prompt, sampling), sink)
    answers = [await sink.end() for sink in sinks]
    assert sum(stats.draft_tokens for stats in listener.stats) > 0
    alone = open_batch(checkpoint, dtype="fp32", device="cpu", kernels="torch")
    for number, (prompt, sampling) in enumerate(requests):
        alone.add(SequenceRequest(prompt, sampling, id=number))
    expected = run_to_end(alone)
    alone.close()
    for number, events in enumerate(answers):
        wanted = expected[number]
        assert [event.token_id for event in events] == [event.token_id for event in wanted]
        assert scores_of(events) == pytest.approx(scores_of(wanted), abs=1e-4)


async def test_each_sequence_of_a_mixed_batch_has_its_adapter_on_all_devices(
    checkpoint: Path, adapters: dict[str, str], shared: tuple[EngineClient, Listener]
) -> None:
    """Prompts in pieces beside decoding sequences; an adapter that comes later takes the slot of one that goes."""
    client, _ = shared
    sampling = SamplingParams(max_new_tokens=6, ignore_eos=True, prompt_logprobs=0)
    prompts = [[(7 * place + number) % 300 + 2 for place in range(29)] for number in range(5)]

    async def answers_of(names: list[str]) -> list[list[TokenEvent]]:
        sinks = [Sink() for _ in names]
        for prompt, name, sink in zip(prompts, names, sinks, strict=False):
            client.submit(SequenceRequest(prompt, sampling, adapter=name), sink)
        return [await sink.end() for sink in sinks]

    alone = open_batch(
        checkpoint, dtype="fp32", device="cpu", kernels="torch", enable_lora=True, max_loras=2, adapters=adapters
    )

    def expected(names: list[str]) -> list[list[TokenEvent]]:
        for number, (prompt, name) in enumerate(zip(prompts, names, strict=False)):
            alone.add(SequenceRequest(prompt, sampling, id=number, adapter=name))
        events = run_to_end(alone)
        return [events[number] for number in range(len(names))]

    def compare(made: list[list[TokenEvent]], wanted: list[list[TokenEvent]]) -> None:
        for ours, theirs in zip(made, wanted, strict=True):
            assert [event.token_id for event in ours] == [event.token_id for event in theirs]
            assert scores_of(ours) == pytest.approx(scores_of(theirs), abs=1e-4)

    try:
        names = ["layers", "", "ends", "", "layers"]
        mixed, base = expected(names), expected([""] * 5)
        assert all(
            (scores_of(one) == pytest.approx(scores_of(other), abs=1e-2)) == (name == "")
            for one, other, name in zip(mixed, base, names, strict=True)
        )
        compare(await answers_of(names), mixed)
        await client.change_adapter(AdapterChange(0, "register", "new", adapters["layers"], {}))
        compare(await answers_of(["new", "ends", ""]), expected(["layers", "ends", ""]))
        await client.change_adapter(AdapterChange(0, "unregister", "new", "", {}))
        compare(await answers_of(["ends", "layers", ""]), expected(["ends", "layers", ""]))
        compare(await answers_of([""] * 5), base)
    finally:
        alone.close()


async def test_a_cancelled_sequence_leaves_the_ranks_together(shared: tuple[EngineClient, Listener]) -> None:
    client, _ = shared
    gone, witness = Sink(), Sink()
    request_id = client.submit(SequenceRequest([5] * 9, SamplingParams(max_new_tokens=100, ignore_eos=True)), gone)
    await gone.begun.wait()
    client.cancel(request_id)
    client.submit(SequenceRequest([6] * 9, SamplingParams(max_new_tokens=3, ignore_eos=True)), witness)
    assert len(await witness.end()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_rank_that_dies_or_is_stopped_takes_the_engine_with_it(
    checkpoint: Path, number: signal.Signals
) -> None:
    listener, sink = Listener(), Sink()
    client = await listener.open(checkpoint, heartbeat_timeout_s=0.5, **_SHARED)
    (rank,) = psutil.Process(client.pid).children()
    client.submit(SequenceRequest([5] * 9, SamplingParams(max_new_tokens=110, ignore_eos=True)), sink)
    await sink.begun.wait()
    rank.send_signal(number)
    events = await sink.end()
    assert events[-1].error is not None
    async with asyncio.timeout(30):
        await listener.died.wait()
    await client.close()
    await until_ended(rank)


@pytest.mark.slow
async def test_a_rank_that_cannot_open_its_part_says_why(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose device is full: the rank alone fails, and the words are its own."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import sys
if "djl_python.engine.parallel.rank" in sys.orig_argv:
    from djl_python.engine.torch_backend import paging
    from djl_python.core.errors import ModelLoadError
    def full(*_):
        raise ModelLoadError("the second device is full")
    paging.Paging.cache = full
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ModelLoadError) as caught:
        await Listener().open(checkpoint, **_SHARED)
    assert caught.value.message == "the second device is full"


@pytest.mark.parametrize("scores", [None, 1])
@pytest.mark.parametrize(("computed", "length", "drafts"), [(0, 4, ()), (0, 9, ()), (6, 6, (1, 2, 3)), (8, 1, ())])
async def test_a_rank_knows_of_a_chunk_what_a_runner_needs(
    computed: int, length: int, drafts: tuple[int, ...], scores: int | None
) -> None:
    sampling = SamplingParams(max_new_tokens=5, prompt_logprobs=scores)
    sequence = Sequence(7, list(range(20, 29)), 9, sampling, computed=computed, blocks=[4, 2])
    chunk = SequenceChunk(sequence, length, drafts)
    there = Followed().chunk_of(msgspec.msgpack.decode(msgspec.msgpack.encode(piece_of(chunk)), type=Piece))
    assert (there.tokens, there.length, there.drafts) == (chunk.tokens, chunk.length, chunk.drafts)
    assert (there.completes, rows_of(there)) == (chunk.completes, rows_of(chunk))
    assert (there.sequence.id, there.sequence.computed, there.sequence.blocks) == (7, computed, [4, 2])


async def test_a_rank_follows_what_a_sequence_has_been(checkpoint: Path) -> None:
    """A runner that keeps more than a paged cache may want all tokens: also after drafts that were wrong, and again."""
    followed = Followed()

    def heard(computed: int, tokens: list[int], drafts: tuple[int, ...] = ()) -> list[int]:
        chunk = followed.chunk_of(Piece(7, computed, [*tokens, *drafts], drafts, True, False, [1]))
        return list(chunk.sequence.tokens)

    assert heard(0, [5, 6, 7]) == [5, 6, 7]
    assert heard(3, [8], (1, 2)) == [5, 6, 7, 8, 1, 2]
    assert heard(5, [9]) == [5, 6, 7, 8, 1, 9]
    assert heard(0, [5, 6]) == [5, 6]  # preempted
    sequence = followed.forget(7)
    assert sequence is not None and sequence.id == 7
    assert followed.forget(7) is None
    assert heard(3, [8]) == [8]  # others have computed its beginning
