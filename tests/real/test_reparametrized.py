"""Trained weights in every family's parameters: what SmolLM2 predicts, whichever kernels compute it."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.real.conftest import opened
from tests.real.perplexity import of_engine
from tests.real.reparametrized import ARCHITECTURES, fused_mlp, mlp, write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def some(texts: list[list[int]]) -> list[list[int]]:
    """A window of prose, and one of conversations."""
    return [texts[0], texts[-1]]


@pytest.fixture(scope="module")
def expected(smol: Path, some: list[list[int]]) -> Callable[[str], float]:
    """SmolLM2's own perplexity, as a Llama, by precision."""

    @functools.cache
    def perplexity(quantize: str) -> float:
        with opened(smol, dtype="bf16", quantize=quantize) as batch:
            return of_engine(batch, some)

    return perplexity


@pytest.fixture(scope="module")
def checkpoint(smol: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    path = write(request.param, smol, tmp_path_factory.mktemp("reparametrized") / request.param)
    yield path
    shutil.rmtree(path)  # each has up to 800 MB


def cases() -> Iterator[tuple[str, str]]:
    """Each architecture; those with experts, whose rounded weights have kernels of their own, in each precision."""
    for name, architecture in ARCHITECTURES.items():
        has_experts = architecture.mlp not in (mlp, fused_mlp)
        yield from ((name, quantize) for quantize in (("none", "int8", "int4") if has_experts else ("none",)))


@pytest.mark.parametrize(("checkpoint", "quantize"), list(cases()), indirect=["checkpoint"])
def test_a_reparametrized_model_predicts_what_smollm2_does(
    checkpoint: Path, quantize: str, some: list[list[int]], expected: Callable[[str], float]
) -> None:
    with opened(checkpoint, dtype="bf16", quantize=quantize) as batch:
        assert (batch.info.runner, batch.info.unrounded) == ("native", "")
        perplexity = of_engine(batch, some)
    # Weights that are written otherwise are rounded otherwise: Gemma's to bf16, gpt-oss's in groups of another order.
    assert perplexity == pytest.approx(expected(quantize), rel=0.005 if quantize == "none" else 0.02)
