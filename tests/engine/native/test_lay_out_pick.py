"""Tokens found with rounded weights are those of all logits, whatever weights and inputs are."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from djl_python.engine.native import lay_out_pick as laying_out
from djl_python.engine.native.lay_out_pick import lay_out_pick
from djl_python.engine.native.layout import Layout
from djl_python.engine.native.memory import Arena
from djl_python.engine.native.operations import Into, choose
from djl_python.engine.native.packing import EIGHT, TWELVE, Packer
from djl_python.engine.native.picker import Patience, Picker
from djl_python.engine.native.pool import CHOICE, DRAW, Mode, Op, Pool, Step
from djl_python.engine.native.recipe_parts import Linear
from djl_python.engine.quantization import GROUP
from djl_python.engine.row_scan import mix

N: Final = 13_610  # neither whole panels nor whole vectors of them
K: Final = 320
ROWS: Final = 256


@pytest.fixture(scope="module")
def pool(_kernels: None) -> Iterator[Pool]:
    made = Pool(2)
    yield made
    made.close()


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Head:
    """An lm_head whose product and search read rows of 16 bits."""

    def __init__(
        self,
        pool: Pool,
        weight: Tensor,
        bias: Tensor | None = None,
        scale: float = 1.0,
        softcap: float = 0.0,
    ) -> None:
        self._pool = pool
        self.n, self.k = weight.shape
        self.head = Linear(weight.bfloat16(), bias)
        self._layout = layout = Layout(torch.bfloat16, None, pool, Arena(), self.k, 256)
        packed = layout.pack_head(self.head)
        into = Into(None, Mode.STORE_FP32, scale=scale, softcap=softcap)
        layout.add_linear(packed, layout.normed, into)
        self.operations = lay_out_pick(layout, self.head, packed, layout.normed, into)
        assert packed.weight_format == TWELVE
        (self.product,) = layout.ops

    def logits(self, x: Tensor) -> Tensor:
        self._give(x)
        logits, self.product.maxima = torch.empty(len(x), self.n), None
        self.product.out = logits.data_ptr()
        self._pool.run((Op * 1)(self.product), 1, self._step(x), late=self._step(x), bf16=True)
        return logits

    def pick(self, x: Tensor, draws: npt.NDArray[Any] | None = None) -> list[int] | None:
        """The tokens, if rounded weights tell them."""
        self._give(x)
        picker = Picker(self.operations)
        tokens = picker.run(self._pool, self._step(x), self._step(x), torch.empty(len(x), -(-self.n // 64)), draws)
        assert picker.patience.tries() == (tokens is not None)
        return tokens

    def expect(self, x: Tensor, expected: list[int], draws: npt.NDArray[Any] | None = None) -> None:
        """Rounded weights tell nearly every row's token, and these are the ones."""
        each = [None if draws is None else draws[row : row + 1] for row in range(len(x))]
        found = [self.pick(x[row : row + 1], one) for row, one in enumerate(each)]
        assert found.count(None) <= len(x) // 20
        assert all(tokens in (None, [token]) for tokens, token in zip(found, expected, strict=True))

    def rounded_maxima(self, x: Tensor) -> Tensor:
        """(rows, panels) of the product with rounded weights."""
        self._give(x)
        maxima = torch.empty(len(x), -(-self.n // 64))
        quantize, product = self.operations[:2]
        product.maxima = maxima.data_ptr()
        self._pool.run((Op * 2)(quantize, product), 2, self._step(x), late=self._step(x), bf16=True)
        return maxima

    def _give(self, x: Tensor) -> None:
        rows = torch.zeros(len(x), self._layout.normed.stride, dtype=torch.bfloat16)
        rows[:, : self.k] = x
        ctypes.memmove(self._layout.normed.at, rows.data_ptr(), rows.nbytes)

    def _step(self, x: Tensor) -> Step:
        return Step(tokens=len(x), wanted=len(x))


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
def test_tokens_are_those_of_all_logits(pool: Pool, shape: Shape) -> None:
    weight, x = shape(numbers(N, K) * 0.02, numbers(ROWS, K, seed=2))
    head = Head(pool, weight)
    expected = greatest(head.logits(x))
    head.expect(x, expected)
    assert head.pick(x[:20]) == expected[:20]  # together


@pytest.mark.parametrize("k", [64, 70, 2600])  # part of a group, several parts of a panel
@pytest.mark.parametrize("scale", [1.0, 0.0625])
def test_with_a_bias_and_a_scale(pool: Pool, k: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laying_out, "_LEAST_WEIGHTS", 0)
    n = 3000
    head = Head(pool, numbers(n, k) * 0.02, numbers(n, seed=3), scale)
    x = numbers(ROWS, k, seed=4)
    assert head.pick(x) == greatest(head.logits(x))


def test_rounding_alone_would_name_others(pool: Pool) -> None:
    """Panels whose rounded maximum is not the greatest one are looked into, and for good reason."""
    head = Head(pool, numbers(N, K) * 0.02)
    x = numbers(ROWS, K, seed=8)
    expected = greatest(head.logits(x))
    head.expect(x, expected)
    panels = head.rounded_maxima(x).argmax(1).tolist()
    assert sum(panel != token // 64 for panel, token in zip(panels, expected, strict=True)) > 2


def test_with_exact_weights_the_rows_errors_count(pool: Pool) -> None:
    """In each group, a number that nothing is multiplied with makes the others' steps wide."""
    weight = (numbers(N, K) * 30).round().clamp(-126, 126)
    weight[:, ::GROUP] = 0
    weight[:, 0] = 127  # the greatest: a step is 1
    x = numbers(ROWS, K, seed=2)
    x[:, ::GROUP] = 12
    x[:, 0] = 0
    _expect_luck(Head(pool, weight), x)


def test_with_exact_rows_the_weights_errors_count(pool: Pool) -> None:
    x = (numbers(ROWS, K, seed=2) * 30).round().clamp(-126, 126)
    x[:, ::GROUP] = 127
    weight = numbers(N, K)
    weight[:, ::GROUP] = 0
    weight[:, 0] = 12
    x[:, 0] = 0
    x[:, 1] = 127
    weight[:, 1] = 0
    _expect_luck(Head(pool, weight), x)


def test_a_panel_that_is_known_exactly_beats_one_that_seemed_greater(pool: Pool) -> None:
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
    expected = greatest(head.logits(x))
    head.expect(x, expected)
    head.expect(x, expected, draws_of(*[0.05] * ROWS))  # of these logits, noise changes nothing
    panels = head.rounded_maxima(x).argmax(1).tolist()
    wrong = sum(panel != token // 64 for panel, token in zip(panels, expected, strict=True))
    assert 5 < wrong < ROWS / 2


@pytest.mark.parametrize("shape", SHAPES, ids=["normal", *(shape.__name__ for shape in SHAPES[1:])])
def test_no_maximum_is_further_off_than_the_norms_tell(pool: Pool, shape: Shape) -> None:
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
def test_rounding_tells_by_how_much(pool: Pool, n: int, k: int) -> None:
    weight = (numbers(n, k) * 0.02).bfloat16()
    weight[3] = 0
    packed, weight_squares, error_squares = Packer(torch.bfloat16, pool, Arena()).pack_rounded(
        Linear(weight, None), None
    )
    panels, groups = -(-n // 64), -(-k // GROUP)
    lanes = packed.weight.view(panels, groups * GROUP // 4, 64, 4)
    codes = lanes.transpose(1, 2).reshape(panels * 64, groups * GROUP).float() - 128
    assert packed.weight_format == EIGHT and packed.weight2 is not None
    exact = torch.nn.functional.pad(weight.float(), (0, groups * GROUP - k, 0, panels * 64 - n))
    expected = (exact / exact.abs().amax(1, keepdim=True).clamp_min(1e-30) * 127).round()
    assert (codes - expected).abs().max() <= 1  # where it is in the middle
    assert (codes != expected).float().mean() < 1e-3
    values = codes * packed.weight2[:, None]
    off = values - exact
    assert ((off * values).sum(1).abs() <= 1e-5 * (exact * exact).sum(1)).all()  # of the least error
    for found, expected in ((weight_squares, exact), (error_squares, off)):
        squares = expected.view(panels, 64, groups, GROUP).square().sum(3).amax(1).T
        assert torch.allclose(found, squares, rtol=1e-4)


def test_the_first_of_equals_is_taken(pool: Pool) -> None:
    weight = numbers(N, K) * 0.02
    weight[[777, 790, 13_000]] = weight[40] = weight[900] * 1.5
    head = Head(pool, weight)
    x = weight[40].expand(3, K) * 20
    assert head.pick(x) == [40] * 3


def test_where_too_many_may_be_the_greatest_there_are_no_tokens(pool: Pool) -> None:
    weight = numbers(N, K) * 0.02
    weight[64 : 64 * 200 : 64] = weight[7]
    head = Head(pool, weight)
    x = numbers(4, K, seed=2)
    assert head.pick(x) is not None
    x[2] = weight[7] * 40
    assert head.pick(x) is None


def test_nor_where_scores_are_no_numbers(pool: Pool) -> None:
    head = Head(pool, numbers(N, K) * 0.02)
    x = numbers(5, K, seed=2)
    x[3, 100] = float("nan")
    assert head.pick(x) is None
    assert head.pick(torch.full((1, K), float("inf"))) is None


def noise_of(keys: npt.NDArray[np.uint32], count: int) -> npt.NDArray[np.float64]:
    """noise.h in other words."""
    first, second = (np.uint32(key) for key in keys)
    h = np.arange(count, dtype=np.uint32) + first
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x7FEB352D)
    h = (h ^ h >> np.uint32(15) ^ second) * np.uint32(0x846CA68B)
    h ^= h >> np.uint32(16)
    noise: npt.NDArray[np.float64] = -np.log(-np.log1p(-((h >> np.uint32(1)) + 0.5) / 2**31))
    return noise


def draws_of(*temperatures: float) -> npt.NDArray[Any]:
    """Rows that draw, or with a temperature of 0 don't."""
    draws = np.zeros(len(temperatures), DRAW)
    draws["noisy"] = [temperature > 0 for temperature in temperatures]
    draws["inverse_temperature"] = [1 / temperature if temperature else 0 for temperature in temperatures]
    draws["keys"] = np.arange(2 * len(temperatures)).reshape(-1, 2) * 2654435761 % 2**32
    return draws


@pytest.mark.parametrize("softcap", [0.0, 12.0])
@pytest.mark.parametrize("temperature", [0.1, 0.8, 3.0])
def test_draws_are_those_from_all_logits(pool: Pool, temperature: float, softcap: float) -> None:
    """Greedy rows among them."""
    head = Head(pool, numbers(N, K) * 0.2, softcap=softcap)
    x = numbers(ROWS, K, seed=2)
    temperatures = [0.0 if row % 5 == 3 else temperature for row in range(ROWS)]
    draws = draws_of(*temperatures)
    choices = np.zeros(ROWS, CHOICE)
    choices["changed"] = -1
    choices["mode"] = [3 if each else 1 for each in temperatures]
    choices["inverse_temperature"] = draws["inverse_temperature"]
    choices["seed"] = np.arange(ROWS, dtype=np.uint64) * 77
    states = mix(choices["seed"] + choices["position"].astype(np.uint64))
    draws["keys"] = states.view(np.uint32).reshape(-1, 2)
    logits = head.logits(x)
    operation = choose(
        n=N, in_=logits.data_ptr(), maxima=None, changed=None, choices=choices.ctypes.data, max_alternatives=0,
        logprobs=0, token_ids=0,
    )  # fmt: skip
    pool.run((Op * 1)(operation), 1, Step(wanted=ROWS))
    head.expect(x, choices["token"].tolist(), draws)
    noise = np.stack([noise_of(keys, N) for keys in draws["keys"]]) * draws["noisy"][:, None]
    scaled = logits.double().numpy() * np.where(draws["noisy"], draws["inverse_temperature"], 1)[:, None]
    alike = (scaled + noise).argmax(1) == choices["token"]
    assert alike.sum() >= ROWS - 1  # rounding may decide
    if temperature == 3:
        assert choices["token"].tolist() != greatest(logits)


@pytest.mark.parametrize("change", [{"weight_format": EIGHT}, {"n": 100}, {"scale": -1.0}, {"scale": 0.0}])
def test_where_there_is_no_shorter_way(pool: Pool, change: dict[str, Any]) -> None:
    layout = Layout(torch.bfloat16, None, pool, Arena(), K, 8)
    head = Linear((numbers(N, K) * 0.02).bfloat16(), None)
    scale = change.get("scale", 1.0)
    packed = replace(layout.pack_head(head), **{name: value for name, value in change.items() if name != "scale"})
    assert lay_out_pick(layout, head, packed, layout.normed, Into(None, Mode.STORE_FP32, scale=scale)) == []
    assert not layout.ops


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
