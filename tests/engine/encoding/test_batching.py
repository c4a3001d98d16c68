"""The encoder that the loop steps, over a model that says how long each text is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from djl_python.core.engine_info import EngineInfo
from djl_python.core.errors import MachineLoadError, ParameterError
from djl_python.engine.encoding.batching import BatchingEncoder
from djl_python.engine.encoding.queue import FairQueue
from djl_python.ipc.encodings import EncodeRequest, EncoderInput
from tests.encoders import numbers_of, run_to_end

BAD, INFINITE, REFUSED = 13, 14, 15


class Lengths:
    """A model that fails with a batch that has the token BAD in it."""

    context, vocabulary = 100, 50

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.failure: Exception = RuntimeError("a kernel failed")

    def check(self, one: EncoderInput) -> None:
        if REFUSED in one.ids:
            raise ParameterError("not this one", "inputs")

    def run(self, inputs: Sequence[EncoderInput]) -> list[npt.NDArray[np.float32]]:
        self.batches.append(len(inputs))
        if any(BAD in one.ids for one in inputs):
            raise self.failure
        return [np.array([np.inf if INFINITE in one.ids else len(one.ids)], np.float32) for one in inputs]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def engine_of(model: Lengths, **settings: object) -> BatchingEncoder:
    return BatchingEncoder(model, FairQueue(1000), at_once=8, info=EngineInfo(runner="test"), **settings)  # type: ignore[arg-type]


def run_on(engine: BatchingEncoder) -> list[tuple[int, int, str | None, bool]]:
    """All results, as the loop would get them: (request, index, error, whether it is the request's last)."""
    encodings = []
    while not engine.idle:
        try:
            encodings += engine.step()
        except RuntimeError as exc:
            encodings += engine.isolate(exc)
    return [(one.request_id, one.index, one.error, one.ends) for one in encodings]


def test_an_input_that_is_refused_costs_its_neighbours_nothing() -> None:
    engine = engine_of(Lengths())
    engine.add(EncodeRequest([EncoderInput([1]), EncoderInput([REFUSED]), EncoderInput([1, 1])], 1))
    assert run_on(engine) == [(1, 1, "not this one", False), (1, 2, None, False), (1, 0, None, True)]
    engine.add(EncodeRequest([EncoderInput([REFUSED])], 2))
    assert run_on(engine) == [(2, 0, "not this one", True)]


def test_a_batch_that_fails_is_tried_one_by_one() -> None:
    model = Lengths()
    engine = engine_of(model)
    engine.add(EncodeRequest([EncoderInput([1]), EncoderInput([BAD])], 1))
    engine.add(EncodeRequest([EncoderInput([1])], 2))
    errors = {(request, index): error for request, index, error, _ in run_on(engine)}
    assert errors == {(1, 0): None, (1, 1): "encoding failed: RuntimeError: a kernel failed", (2, 0): None}
    assert model.batches == [3, 1, 1, 1]


def test_an_input_that_is_refused_has_its_error_though_a_batch_fails() -> None:
    engine = engine_of(Lengths())
    engine.add(EncodeRequest([EncoderInput([REFUSED]), EncoderInput([REFUSED])], 1))
    engine.add(EncodeRequest([EncoderInput([BAD])], 2))
    errors = {(request, index): (error, ends) for request, index, error, ends in run_on(engine)}
    assert errors == {
        (1, 0): ("not this one", False),
        (1, 1): ("not this one", True),
        (2, 0): ("encoding failed: RuntimeError: a kernel failed", True),
    }
    assert engine.stats.running == 0


def test_a_text_that_does_not_fit_into_memory_is_told_so_and_a_lost_gpu_ends_all() -> None:
    model = Lengths()
    model.failure = MemoryError()
    engine = engine_of(model)
    engine.add(EncodeRequest([EncoderInput([BAD] * 7)], 1))
    with pytest.raises(MemoryError):
        engine.step()
    (failed,) = engine.isolate(model.failure)
    assert (failed.error, failed.error_kind, failed.ends) == (
        "there is no memory to compute a text of 7 tokens",
        "load_memory",
        True,
    )
    with pytest.raises(MachineLoadError):
        engine.isolate(MachineLoadError("the GPU is lost"))


def test_numbers_that_are_not_finite_are_an_error() -> None:
    engine = engine_of(Lengths())
    engine.add(EncodeRequest([EncoderInput([INFINITE]), EncoderInput([1])], 1))
    errors = {index: error or "" for _, index, error, _ in run_on(engine)}
    assert "not finite" in errors[0] and not errors[1]


def test_a_cancelled_request_has_no_results() -> None:
    engine = engine_of(Lengths())
    engine.add(EncodeRequest([EncoderInput([1]), EncoderInput([REFUSED])], 1))
    engine.add(EncodeRequest([EncoderInput([1])], 2))
    engine.cancel(1)
    engine.cancel(9)
    assert run_on(engine) == [(2, 0, None, True)]
    assert engine.stats.running == engine.stats.waiting == 0


def test_fewer_than_a_batch_wait_for_others() -> None:
    model, clock = Lengths(), Clock()
    engine = engine_of(model, fewest=3, delay_s=0.5, clock=clock)
    engine.add(EncodeRequest([EncoderInput([1])], 1))
    clock.now_s = 0.2
    assert engine.pause_s == pytest.approx(0.3)
    assert engine.step() == [] and model.batches == []
    engine.add(EncodeRequest([EncoderInput([1])] * 2, 2))
    assert engine.pause_s == 0
    assert len(numbers_of(run_to_end(engine))) == 3
    assert model.batches == [3]
    engine.add(EncodeRequest([EncoderInput([1])], 3))
    clock.now_s = 0.8
    assert len(engine.step()) == 1
