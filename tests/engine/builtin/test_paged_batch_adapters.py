"""Adapters of the built-in batch: read when a sequence names them, and each one's fault is its own sequences' alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from djl_python.config import ModelConfig
from djl_python.core.errors import MemoryLoadError, ModelLoadError, ParameterError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams, TokenEvent
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.builtin.row import ENGINE
from tests.adapters import write_adapter
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch, run_to_end

PROMPT = [5, 9, 30, 12, 44, 7, 7, 61] * 3


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def batch(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagedRollingBatch]:
    path = write_adapter(tmp_path_factory.mktemp("adapters") / "a", checkpoint, 1, scale=0.2)
    made = open_batch(
        checkpoint,
        kernels="torch",
        enable_lora=True,
        max_loras=2,
        max_cpu_loras=1,
        adapters={"a": str(path)},
        speculative="ngram",
    )
    yield made
    made.close()


def texts(batch: PagedRollingBatch, *names: str) -> list[list[TokenEvent]]:
    for number, name in enumerate(names, 1):
        sampling = SamplingParams(max_new_tokens=8, ignore_eos=True)
        batch.add(SequenceRequest(PROMPT, sampling, id=number, adapter=name))
    events = run_to_end(batch)
    return [events[number] for number in range(1, len(names) + 1)]


def ids(events: list[TokenEvent]) -> list[int]:
    return [event.token_id for event in events]


def register(batch: PagedRollingBatch, name: str, path: Path, version: int = 0, **options: str) -> None:
    pending = batch.add_adapter(name, version, str(path), options)
    pending.read.result(60)
    pending.complete()


def test_prefixes_and_drafts_are_an_adapters_own(batch: PagedRollingBatch) -> None:
    adapted, base, again = texts(batch, "a", "", "a")
    assert ids(adapted) == ids(again) != ids(base)
    cold, warm = texts(batch, "")[0], texts(batch, "a")[0]
    assert (cold[0].cached_tokens, warm[0].cached_tokens) == (16, 16)
    assert (ids(cold), ids(warm)) == (ids(base), ids(adapted))


def test_files_that_have_gone_are_their_sequences_error(
    batch: PagedRollingBatch, checkpoint: Path, tmp_path: Path
) -> None:
    path = write_adapter(tmp_path / "b", checkpoint, 2, scale=0.2)
    register(batch, "b", path)
    shutil.rmtree(path)
    base, broken, adapted = texts(batch, "", "b", "a")
    (event,) = broken
    assert event.error is not None and event.error.startswith("adapter b: ")
    assert len(base) == len(adapted) == 8
    write_adapter(path, checkpoint, 2, scale=0.2)
    assert len(texts(batch, "b")[0]) == 8
    batch.remove_adapter("b", 0)
    with pytest.raises(ParameterError, match="adapter b has been unregistered"):
        texts(batch, "b")


def test_an_adapter_goes_when_its_sequences_have_ended(
    batch: PagedRollingBatch, checkpoint: Path, tmp_path: Path
) -> None:
    register(batch, "c", write_adapter(tmp_path / "c", checkpoint, 3, scale=0.2), preload="true")
    (expected,) = texts(batch, "c")
    sampling = SamplingParams(max_new_tokens=8, ignore_eos=True)
    batch.add(SequenceRequest(PROMPT, sampling, id=1, adapter="c"))
    events = batch.step()
    batch.remove_adapter("c", 0)
    samples = {family.name: family.samples for family in batch.metrics()}
    assert {sample.labels["adapter"] for sample in samples["engine_adapter_in_slot"]} == {"a"}
    assert ids([*events, *run_to_end(batch)[1]]) == ids(expected)
    assert samples["engine_adapter_memory_bytes"][0].value > 0


def test_a_slot_is_left_to_adapters_that_are_not_pinned(
    batch: PagedRollingBatch, checkpoint: Path, tmp_path: Path
) -> None:
    path = write_adapter(tmp_path / "p", checkpoint, 4)
    register(batch, "p", path, pin="true")
    with pytest.raises(MemoryLoadError, match=r"adapter q: 1 may be pinned with option\.max_loras=2"):
        register(batch, "q", path, pin="true")
    batch.remove_adapter("p", 0)
    register(batch, "q", path, pin="true")
    batch.remove_adapter("q", 0)


def test_a_pinned_adapter_may_be_replaced(batch: PagedRollingBatch, checkpoint: Path, tmp_path: Path) -> None:
    """The replacement is pinned instead, or none is, while a sequence still has the adapter that was replaced."""
    path = write_adapter(tmp_path / "p", checkpoint, 4)
    register(batch, "p", path, pin="true")
    batch.add(SequenceRequest(PROMPT, SamplingParams(max_new_tokens=8, ignore_eos=True), id=1, adapter="p"))
    batch.step()
    register(batch, "p", path, 1, pin="true")
    with pytest.raises(MemoryLoadError, match="1 may be pinned"):
        register(batch, "q", path, pin="true")
    register(batch, "p", path, 2)
    register(batch, "q", path, pin="true")
    assert len(run_to_end(batch)[1]) > 0
    assert [len(events) for events in texts(batch, "p", "q", "a")] == [8, 8, 8]
    for name, version in (("p", 0), ("p", 1), ("p", 2), ("q", 0)):
        batch.remove_adapter(name, version)


def test_adapters_that_are_read_at_once_are_not_all_pinned(
    batch: PagedRollingBatch, checkpoint: Path, tmp_path: Path
) -> None:
    path = write_adapter(tmp_path / "p", checkpoint, 4)
    first, second = (batch.add_adapter(name, 0, str(path), {"pin": "true"}) for name in "pq")
    for pending in (first, second):
        pending.read.result(60)
    first.complete()
    with pytest.raises(MemoryLoadError, match=r"adapter q: 1 may be pinned with option\.max_loras=2"):
        second.complete()
    with pytest.raises(ParameterError, match="adapter q has been unregistered"):
        texts(batch, "q")
    assert [len(events) for events in texts(batch, "p", "a")] == [8, 8]
    batch.remove_adapter("p", 0)


def test_an_adapter_that_is_replaced_is_there_for_further_sequences(
    batch: PagedRollingBatch, checkpoint: Path, tmp_path: Path
) -> None:
    """A call's later sequences, such as beams, are computed with the adapter that its first ones had."""
    register(batch, "r", write_adapter(tmp_path / "old", checkpoint, 3, scale=0.2))
    (old,) = texts(batch, "r")
    register(batch, "r", write_adapter(tmp_path / "new", checkpoint, 5, scale=0.2), 1)
    sampling = SamplingParams(max_new_tokens=8, ignore_eos=True)
    for version in (0, 1):
        batch.add(SequenceRequest(PROMPT, sampling, id=version, adapter="r", adapter_version=version))
    made = run_to_end(batch)
    assert ids(made[0]) == ids(old) != ids(made[1])
    batch.remove_adapter("r", 0)
    with pytest.raises(ParameterError, match="adapter r has been unregistered"):
        texts(batch, "r")
    batch.remove_adapter("r", 1)


def test_an_adapter_that_is_named_at_the_start_has_to_be_there(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"adapter a: there is no adapter_config\.json"):
        open_batch(checkpoint, kernels="torch", enable_lora=True, adapters={"a": str(tmp_path)})


def test_native_kernels_may_be_asked_for() -> None:
    """They compute adapters."""
    ENGINE.check_model(ModelConfig(name="m", engine_options={"enable_lora": True, "kernels": "native"}))
