"""Linears that are given the same are computed together, and are what they are apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from djl_python.engine.checkpoints.quantization import Quantize
from djl_python.engine.native.abi.operations import OperationArray
from djl_python.engine.native.abi.step_inputs import StepInputs
from djl_python.engine.native.modules.linears import NativeLinear, NativeLinears
from djl_python.engine.native.modules.siblings import joined
from djl_python.engine.reading.recipe_parts import Linear


@pytest.fixture(scope="module", params=[None, "int8"])
def linears(request: pytest.FixtureRequest) -> Iterator[tuple[NativeLinears, Quantize | None]]:
    made = NativeLinears(torch.bfloat16, threads=2)
    yield made, request.param
    made.pool.close()


class Attention(nn.Module):
    """Three linears of x, and one of what they make."""

    def __init__(self, linears: NativeLinears, quantize: Quantize | None) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(1)

        def of(n: int, k: int, bias: bool = False) -> NativeLinear:
            weight = (torch.randn(n, k, generator=random) * 0.1).bfloat16()
            made = linears.make(Linear(weight, torch.ones(n).bfloat16() if bias else None), quantize)
            assert made is not None
            return made

        self.query, self.key, self.value, self.output = of(96, 64, True), of(32, 64), of(32, 64, True), of(64, 160)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.output(torch.cat([self.query(x), self.key(x), self.value(x)], -1))
        return made


class Model(nn.Module):
    def __init__(self, linears: NativeLinears, quantize: Quantize | None) -> None:
        super().__init__()
        self.first, self.second = (Attention(linears, quantize) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(self.first(x))
        return made


def calls_of(linears: NativeLinears, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operations each call of the kernels has."""
    calls: list[int] = []
    run = linears.pool.run

    def counted(operations: OperationArray, step: StepInputs, *, bf16: bool) -> None:
        calls.append(len(operations))
        run(operations, step, bf16=bf16)

    monkeypatch.setattr(linears.pool, "run", counted)
    return calls


@torch.inference_mode()
def test_they_are_what_they_are_apart(
    linears: tuple[NativeLinears, Quantize | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(*linears)
    inputs = [torch.randn(1, tokens, 64).bfloat16() for tokens in (3, 1, 7)]
    expected = [model(x) for x in inputs]
    with joined(model):
        model(inputs[0])
    calls = calls_of(linears[0], monkeypatch)
    each = 1 if linears[1] is None else 2  # what is multiplied is rounded first
    for x, wanted in zip(inputs, expected, strict=True):
        calls.clear()
        assert torch.equal(model(x), wanted)
        assert calls == [3 * each, each] * 2


@torch.inference_mode()
def test_whoever_is_asked_in_another_way_still_answers(linears: tuple[NativeLinears, Quantize | None]) -> None:
    alone, together = (Attention(*linears) for _ in range(2))
    x, y = (torch.randn(2, 64).bfloat16() for _ in range(2))
    with joined(nn.ModuleList([together])):
        together(x)
    for name, given in (("key", x), ("key", x), ("value", y), ("query", x), ("value", x), ("value", y), ("key", y)):
        assert torch.equal(getattr(together, name)(given), getattr(alone, name)(given))
    assert together.output.siblings is None
    assert together.query.siblings is together.value.siblings is not None


@torch.inference_mode()
def test_equal_numbers_are_not_the_same_tensor(linears: tuple[NativeLinears, Quantize | None]) -> None:
    attention = Attention(*linears)
    x = torch.randn(2, 64).bfloat16()
    with joined(nn.ModuleList([attention])):
        attention.query(x)
        attention.key(x.clone())
    assert attention.query.siblings is attention.key.siblings is None
