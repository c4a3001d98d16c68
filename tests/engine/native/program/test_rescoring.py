"""Tokens found with rounded weights are those of all logits, whatever weights and inputs are."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from djl_python.core.types import SamplingParams
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.checkpoints.linears import Linear
from djl_python.engine.checkpoints.quantization import GROUP
from djl_python.engine.native.abi.decoder import LinearOp
from djl_python.engine.native.abi.enums import UNDECIDED, Mode, WeightFormat
from djl_python.engine.native.abi.operations import OperationArray
from djl_python.engine.native.abi.parts import Output
from djl_python.engine.native.abi.sampling import SampleOp
from djl_python.engine.native.abi.step_inputs import StepInputs
from djl_python.engine.native.memory import Arena
from djl_python.engine.native.packing import Packer
from djl_python.engine.native.program.builders import rescoring as building
from djl_python.engine.native.program.builders.builder import ProgramBuilder
from djl_python.engine.native.program.builders.rescoring import build_rescoring
from djl_python.engine.native.program.rescoring import Patience, Rescorer
from djl_python.engine.native.program.row_sampling import PlannedSamplings
from djl_python.engine.native.thread_pool import ThreadPool
from djl_python.engine.sampling.penalties import Occurrences
from djl_python.engine.sampling.row_sampler import SampledTokens, SamplingRequest
from djl_python.engine.sampling.sampling_plan import SamplingPlan

N: Final = 13_610  # neither whole panels nor whole vectors of them
K: Final = 320
ROWS: Final = 256


@pytest.fixture(scope="module")
def pool(_kernels: None) -> Iterator[ThreadPool]:
    made = ThreadPool(2)
    yield made
    made.close()


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Head:
    """An lm_head whose product and search read rows of 16 bits."""

    def __init__(
        self,
        pool: ThreadPool,
        weight: Tensor,
        bias: Tensor | None = None,
        scale: float = 1.0,
        softcap: float = 0.0,
    ) -> None:
        self._pool = pool
        self.n, self.k = weight.shape
        self.head = Linear(weight.bfloat16(), bias)
        self._builder = builder = ProgramBuilder(torch.bfloat16, None, pool, Arena(), self.k, 256)
        packed = builder.pack(self.head, role="head")
        output = Output(mode=Mode.STORE_FP32, scale=scale, softcap=softcap)
        builder.add_linear(packed, builder.normed, output)
        self.operations = build_rescoring(builder, self.head, packed, builder.normed, output)
        assert packed.format == WeightFormat.TWELVE_BIT
        (product,) = builder.operations
        self._product = OperationArray([product])

    def logits(self, x: Tensor) -> Tensor:
        self._give(x)
        logits = torch.empty(len(x), self.n)
        self._product.view(0, LinearOp).output.out = logits.data_ptr()
        self._pool.run(self._product, self._step(x), late=self._step(x), bf16=True)
        return logits

    def choose(self, x: Tensor, asked: SamplingRequest) -> SampledTokens:
        """What is chosen from all logits."""
        logits, samplings = self.logits(x), PlannedSamplings(asked.plan, self.n)
        samplings.update(asked)
        operation = SampleOp(
            n=self.n, in_=logits.data_ptr(), samplings=samplings.address, alternatives=samplings.alternatives
        )
        self._pool.run(OperationArray([operation]), StepInputs(wanted=len(x)))
        return samplings.chosen()

    def pick(self, x: Tensor, asked: SamplingRequest | None = None) -> SampledTokens | None:
        """What is chosen with rounded weights, if they tell it."""
        chosen = self.pick_rows(x, asked or ask(len(x)))
        return None if UNDECIDED in chosen.token_ids else chosen

    def pick_rows(self, x: Tensor, asked: SamplingRequest) -> SampledTokens:
        """The same, row by row: UNDECIDED for those that they don't tell."""
        self._give(x)
        rescorer, samplings = Rescorer(self.operations), PlannedSamplings(asked.plan, self.n)
        samplings.update(asked)
        room = torch.full((len(x), self.n), float("inf"))  # what is not computed is not read
        rescored = rescorer.run(self._pool, self._step(x), self._step(x), samplings, room)
        chosen = samplings.chosen()
        assert rescored == (None if UNDECIDED in chosen.token_ids else chosen)
        assert rescorer.patience.tries() == (rescored is not None)
        return chosen

    def expect(self, x: Tensor, *params: dict[str, Any]) -> list[int]:
        """Rounded weights tell nearly every row's token, and these are those of all logits, which are returned."""
        asked = ask(len(x), *params)
        assert asked.plan.simple
        expected, picked = self.choose(x, asked), self.pick_rows(x, asked)
        assert picked.token_ids.count(UNDECIDED) <= len(x) // 20
        for row, token in enumerate(picked.token_ids):
            if token == UNDECIDED:
                continue
            assert token == expected.token_ids[row]
            assert not asked.plan.params[row].logprobs or abs(picked.logprobs[row] - expected.logprobs[row]) < 0.03
            assert [i for i, _ in picked.tops[row]] == [i for i, _ in expected.tops[row]]
            assert all(abs(a - b) < 0.03 for (_, a), (_, b) in zip(picked.tops[row], expected.tops[row], strict=True))
        return expected.token_ids

    def rounded_maxima(self, x: Tensor) -> Tensor:
        """(rows, panels) of the product with rounded weights."""
        self._give(x)
        maxima = torch.empty(len(x), -(-self.n // 64))
        operations = OperationArray(self.operations[:2])
        operations.view(1, LinearOp).statistics.maxima = maxima.data_ptr()
        self._pool.run(operations, self._step(x), late=self._step(x), bf16=True)
        return maxima

    def _give(self, x: Tensor) -> None:
        rows = torch.zeros(len(x), self._builder.normed.stride, dtype=torch.bfloat16)
        rows[:, : self.k] = x
        ctypes.memmove(self._builder.normed.at, rows.data_ptr(), rows.nbytes)

    def _step(self, x: Tensor) -> StepInputs:
        return StepInputs(tokens=len(x), wanted=len(x))


def ask(rows: int, *params: dict[str, Any]) -> SamplingRequest:
    """What so many rows ask for, each with one of these parameters, in turn; the best tokens if there are none."""
    given = params or ({},)
    plan = _plan(
        [
            SamplingParams(**{"max_new_tokens": 1, "logprobs": False, "seed": row, **given[row % len(given)]})
            for row in range(rows)
        ]
    )
    texts = [Sequence(row, [row % 7, 40, 41, 40, *range(900, 900 + row)], 2, plan.params[row]) for row in range(rows)]
    return SamplingRequest(plan, [5] * rows, [Occurrences(texts[row]) for row in plan.penalized])


def _plan(params: list[SamplingParams]) -> SamplingPlan:
    return SamplingPlan(list(range(len(params))), params, torch.device("cpu"))


def greatest(logits: Tensor) -> list[int]:
    """The first of each row's greatest."""
    best = logits.amax(1, keepdim=True)
    return [int(row.nonzero()[0]) for row in logits == best]


def with_outliers(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone()
    x[:, [3, 70, 300]] *= 40
    return weight, x


def aligned(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return weight, x + weight[:: N // ROWS][:ROWS] * 15


def on_a_grid(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return aligned((weight * 100).round().clamp(-7, 7) / 100, x)


def of_many_norms(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return weight * numbers(N, 1, seed=5).exp(), x


def along_a_common_direction(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    common = numbers(K, seed=6)
    return weight + 0.05 * common, x + 2 * common


Shape = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
SHAPES: Final[list[Shape]] = [
    lambda weight, x: (weight, x),
    with_outliers,
    aligned,
    on_a_grid,
    of_many_norms,
    along_a_common_direction,
]


@pytest.mark.parametrize("shape", SHAPES, ids=["normal", *(shape.__name__ for shape in SHAPES[1:])])
def test_tokens_are_those_of_all_logits(pool: ThreadPool, shape: Shape) -> None:
    weight, x = shape(numbers(N, K) * 0.02, numbers(ROWS, K, seed=2))
    head = Head(pool, weight)
    expected = head.expect(x)
    assert expected == greatest(head.logits(x))
    together = head.pick(x[:20])
    assert together is not None and together.token_ids == expected[:20]


@pytest.mark.parametrize("k", [64, 70, 2600])  # part of a group, several parts of a panel
@pytest.mark.parametrize("scale", [1.0, 0.0625])
def test_with_a_bias_and_a_scale(pool: ThreadPool, k: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "LEAST_WEIGHTS", 0)
    n = 3000
    head = Head(pool, numbers(n, k) * 0.02, numbers(n, seed=3) - 40 / scale, scale)
    x = numbers(ROWS, k, seed=4)
    assert head.expect(x, {"logprobs": True}) == greatest(head.logits(x))


def test_rounding_alone_would_name_others(pool: ThreadPool) -> None:
    """Panels whose rounded maximum is not the greatest one are looked into, and for good reason."""
    head = Head(pool, numbers(N, K) * 0.02)
    x = numbers(ROWS, K, seed=8)
    expected = head.expect(x)
    panels = head.rounded_maxima(x).argmax(1).tolist()
    assert sum(panel != token // 64 for panel, token in zip(panels, expected, strict=True)) > 2


def test_with_exact_weights_the_rows_errors_count(pool: ThreadPool) -> None:
    """In each group, a number that nothing is multiplied with makes the others' steps wide."""
    weight = (numbers(N, K) * 30).round().clamp(-126, 126)
    weight[:, ::GROUP] = 0
    weight[:, 0] = 127  # the greatest: a step is 1
    x = numbers(ROWS, K, seed=2)
    x[:, ::GROUP] = 12
    x[:, 0] = 0
    _expect_luck(Head(pool, weight), x)


def test_with_exact_rows_the_weights_errors_count(pool: ThreadPool) -> None:
    x = (numbers(ROWS, K, seed=2) * 30).round().clamp(-126, 126)
    x[:, ::GROUP] = 127
    weight = numbers(N, K)
    weight[:, ::GROUP] = 0
    weight[:, 0] = 12
    x[:, 0] = 0
    x[:, 1] = 127
    weight[:, 1] = 0
    _expect_luck(Head(pool, weight), x)


def test_a_panel_that_is_known_exactly_beats_one_that_seemed_greater(pool: ThreadPool) -> None:
    """The first panel's errors are large. The others have none, so that theirs don't say whether to look at them."""
    half = 3 * GROUP
    weight = (numbers(N, K) * 30).round().clamp(-126, 126)
    weight[64:, half:] = 0
    weight[:64, :half] = 0
    weight[:64, half:] = (weight[:64, half:] * 2).clamp(-126, 126)
    weight[:, ::GROUP] = weight[:, 1:2] = 0
    weight[:, 0] = 127
    x = numbers(ROWS, K, seed=2) * 30
    x[:, :half] = x[:, :half].round().clamp(-126, 126)
    x[:, :half:GROUP] = 127
    x[:, 1] = 127
    x[:, half::GROUP] = 360
    x[:, 0] = 0
    _expect_luck(Head(pool, weight), x)


def _expect_luck(head: Head, x: Tensor) -> None:
    """Rounding alone would be right for some rows, but not for all; the tokens are those of all logits."""
    expected = head.expect(x)
    head.expect(x, {"do_sample": True, "temperature": 0.05})
    panels = head.rounded_maxima(x).argmax(1).tolist()
    wrong = sum(panel != token // 64 for panel, token in zip(panels, expected, strict=True))
    assert 5 < wrong < ROWS / 2


@pytest.mark.parametrize("shape", SHAPES, ids=["normal", *(shape.__name__ for shape in SHAPES[1:])])
def test_no_maximum_is_further_off_than_the_norms_tell(pool: ThreadPool, shape: Shape) -> None:
    weight, x = shape(numbers(N, K) * 0.02, numbers(ROWS, K, seed=2))
    x = x.bfloat16().float()
    head = Head(pool, weight)
    _, weight_squares, error_squares = Packer(torch.bfloat16, pool, Arena()).pack_rounded(head.head, None)
    off = (head.rounded_maxima(x) - _panel_maxima(head.logits(x))).abs()
    grouped = x.view(ROWS, -1, GROUP)
    steps = grouped.abs().amax(2, keepdim=True) / 127
    rounded = (grouped / steps).round() * steps
    errors = (rounded - grouped).square().sum(2) @ weight_squares + rounded.square().sum(2) @ error_squares
    assert bool((off <= errors.sqrt()).all())
    # Nor is it so wide that it says nothing.
    assert float(off.max()) > 0.2 * float(errors.sqrt().max()) / 8**0.5


def _panel_maxima(logits: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(logits, (0, -logits.shape[1] % 64), value=float("-inf"))
    return padded.view(len(logits), -1, 64).amax(2)


@pytest.mark.parametrize(("n", "k"), [(150, 130), (64, 64), (5, 200)])
def test_rounding_tells_by_how_much(pool: ThreadPool, n: int, k: int) -> None:
    weight = (numbers(n, k) * 0.02).bfloat16()
    weight[3] = 0
    packed, weight_squares, error_squares = Packer(torch.bfloat16, pool, Arena()).pack_rounded(
        Linear(weight, None), None
    )
    panels, groups = -(-n // 64), -(-k // GROUP)
    lanes = packed.panels.view(panels, groups * GROUP // 4, 64, 4)
    codes = lanes.transpose(1, 2).reshape(panels * 64, groups * GROUP).float() - 128
    assert packed.format == WeightFormat.INT8 and packed.scales is not None
    exact = torch.nn.functional.pad(weight.float(), (0, groups * GROUP - k, 0, panels * 64 - n))
    expected = (exact / exact.abs().amax(1, keepdim=True).clamp_min(1e-30) * 127).round()
    assert (codes - expected).abs().max() <= 1  # where it is in the middle
    assert (codes != expected).float().mean() < 1e-3
    values = codes * packed.scales[:, None]
    off = values - exact
    assert ((off * values).sum(1).abs() <= 1e-5 * (exact * exact).sum(1)).all()  # of the least error
    for actual, expected in ((weight_squares, exact), (error_squares, off)):
        squares = expected.view(panels, 64, groups, GROUP).square().sum(3).amax(1).T
        assert torch.allclose(actual, squares, rtol=1e-4)


def test_the_first_of_equals_is_taken(pool: ThreadPool) -> None:
    weight = numbers(N, K) * 0.02
    weight[[777, 790, 13_000]] = weight[40] = weight[900] * 1.5
    head = Head(pool, weight)
    x = weight[40].expand(3, K) * 20
    assert head.expect(x) == [40] * 3


def test_where_too_many_may_be_the_greatest_there_are_no_tokens(pool: ThreadPool) -> None:
    weight = numbers(N, K) * 0.02
    weight[64 : 64 * 200 : 64] = weight[7]
    head = Head(pool, weight)
    x = numbers(4, K, seed=2)
    assert head.pick(x) is not None
    x[2] = weight[7] * 40
    assert head.pick(x) is None


def test_rescoring_picks_no_token_where_scores_are_no_numbers(pool: ThreadPool) -> None:
    head = Head(pool, numbers(N, K) * 0.02)
    x = numbers(5, K, seed=2)
    x[3, 100] = float("nan")
    assert head.pick(x) is None
    assert head.pick(torch.full((1, K), float("inf"))) is None


#: What tokens may be chosen by without all logits; of these logits, from a few to a few dozen tokens are permitted.
SIMPLE: Final[list[dict[str, Any]]] = [
    {},
    {"do_sample": True},
    {"do_sample": True, "temperature": 0.1},
    {"do_sample": True, "temperature": 1.5},
    {"do_sample": True, "top_k": 20},
    {"do_sample": True, "top_k": 20, "temperature": 3.0},
    {"do_sample": True, "top_k": 30, "top_p": 0.6, "min_p": 0.01},
    {"do_sample": True, "top_p": 0.5},
    {"do_sample": True, "top_p": 0.9, "temperature": 0.6},
    {"do_sample": True, "min_p": 0.1, "temperature": 0.7},
    {"do_sample": True, "min_p": 0.02, "top_p": 0.8, "temperature": 0.002},
    {"repetition_penalty": 1.2},
    {"frequency_penalty": 0.5, "presence_penalty": 2.0, "do_sample": True},
    {"repetition_penalty": 1.1, "do_sample": True, "top_k": 20, "top_p": 0.8, "temperature": 0.7},
    {"repetition_penalty": 1.03, "do_sample": True, "top_p": 0.9, "temperature": 0.5},
    {"presence_penalty": 6.0, "do_sample": True, "min_p": 0.1, "temperature": 0.7},
]


@pytest.fixture(scope="module", params=[0.0, 40.0], ids=["", "soft cap"])
def wide(pool: ThreadPool, request: pytest.FixtureRequest) -> Head:
    """A head of many panels. Tokens that have occurred are among the best."""
    weight = numbers(64_010, 128) * 0.45
    weight[900:1156] *= 1.2
    return Head(pool, weight, softcap=request.param)


@pytest.mark.parametrize("reported", [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 8}], ids=str)
@pytest.mark.parametrize("params", SIMPLE, ids=str)
def test_choices_are_those_from_all_logits(wide: Head, params: dict[str, Any], reported: dict[str, Any]) -> None:
    chosen = wide.expect(numbers(64, wide.k, seed=2), {**params, **reported})
    assert len(set(chosen)) > 32


def test_choices_of_a_mixture_are_those_from_all_logits(wide: Head) -> None:
    wide.expect(
        numbers(56, wide.k, seed=2),
        *({**each, "logprobs": i % 3 > 0, "top_logprobs": i % 5} for i, each in enumerate(SIMPLE)),
    )


def test_an_uncertain_total_does_not_decide_what_top_p_permits(pool: ThreadPool) -> None:
    """Otherwise some of a thousand draws would be others."""
    head = Head(pool, numbers(64_010, 128) * 0.25)
    for seed in range(20, 24):
        head.expect(numbers(256, 128, seed=seed), {"do_sample": True, "temperature": 0.5, "top_p": 0.8})


@pytest.mark.parametrize("shape", SHAPES, ids=["normal", *(shape.__name__ for shape in SHAPES[1:])])
@pytest.mark.parametrize("spread", [1, 8])
def test_log_probabilities_are_near(pool: ThreadPool, shape: Shape, spread: float) -> None:
    """Also where most of the mass is known nearly."""
    weight, x = shape(numbers(N, K) * 0.02 * spread, numbers(ROWS, K, seed=2))
    head, asked = Head(pool, weight), ask(ROWS, {"logprobs": True})
    expected, picked = head.choose(x, asked), head.pick_rows(x, asked)
    off = [
        abs(ours - theirs)
        for token, ours, theirs in zip(picked.token_ids, picked.logprobs, expected.logprobs, strict=True)
        if token != UNDECIDED
    ]
    assert len(off) > ROWS / 2
    assert max(off) < 0.05 and sum(off) < 0.01 * len(off)


@pytest.mark.parametrize(
    "params",
    [
        {"do_sample": True, "top_p": 0.9, "temperature": 10.0},
        {"do_sample": True, "min_p": 1e-9},
    ],
    ids=str,
)
def test_where_too_many_tokens_matter_there_are_none(wide: Head, params: dict[str, Any]) -> None:
    assert wide.pick(numbers(3, wide.k, seed=2), ask(3, {}, params)) is None


@pytest.mark.parametrize("change", [{"format": WeightFormat.INT8}, {"n": 100}, {"scale": -1.0}, {"scale": 0.0}])
def test_where_there_is_no_shorter_way(pool: ThreadPool, change: dict[str, Any]) -> None:
    builder = ProgramBuilder(torch.bfloat16, None, pool, Arena(), K, 8)
    head = Linear((numbers(N, K) * 0.02).bfloat16(), None)
    scale = change.get("scale", 1.0)
    packed = replace(
        builder.pack(head, role="head"), **{name: value for name, value in change.items() if name != "scale"}
    )
    assert build_rescoring(builder, head, packed, builder.normed, Output(mode=Mode.STORE_FP32, scale=scale)) == []
    assert not builder.operations


def test_patience() -> None:
    patience = Patience()
    waited = []
    for _ in range(12):  # it waits twice as long each time
        passed = 0
        while not patience.tries():
            passed += 1
        waited.append(passed)
        patience.learn(decided=False)
    assert waited == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023]
    while not patience.tries():
        pass
    patience.learn(decided=True)
    assert patience.tries() and patience.tries()
    patience.learn(decided=False)
    assert [patience.tries() for _ in range(1024)].index(True) == 1023  # half, doubled
