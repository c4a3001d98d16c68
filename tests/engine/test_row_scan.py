"""What is read of rows of scores: the same, to rounding, whoever reads it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from djl_python.engine.row_scan import BLOCK, RowScanner, TorchScanner

VOCABULARIES = [5, 64, 1500, 20_000, 20_032]


@pytest.fixture(params=["torch", "native"])
def scanner(request: pytest.FixtureRequest) -> RowScanner:
    return TorchScanner() if request.param == "torch" else request.getfixturevalue("native_scanner")  # type: ignore[no-any-return]


def rows_of(vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(vocabulary)
    scores = torch.rand(6, vocabulary, generator=generator)
    scores[1].sub_(torch.arange(vocabulary) / 100)  # the best lie together, at the beginning
    scores[2].add_(torch.arange(vocabulary) / 100)  # or the end, where the last block is not whole
    scores[3, 3:] = float("-inf")
    scores[4, :-3] = float("-inf")
    scores[5].mul_(40)
    return scores


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("width", [1, 5, 64, 1024])
def test_the_best_are_those_of_topk(scanner: RowScanner, vocabulary: int, width: int) -> None:
    scores = rows_of(vocabulary)
    scan = scanner.scan(scores, None)
    width = min(width, vocabulary)
    rows = torch.tensor([5, 0, 1, 2, 3, 4])
    values, ids = scanner.best(scores, scan, rows, width)
    assert torch.equal(values, scores[rows].topk(width).values)
    assert torch.equal(scores[rows].gather(1, ids), values)
    assert all(len(set(row)) == width for row in ids.tolist())


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_scan_reads_maxima_and_masses(scanner: RowScanner, vocabulary: int) -> None:
    scores = rows_of(vocabulary)
    temperature = torch.tensor([1.0, 0.5, 1.0, 2.0, 0.7, 1.3])
    scan = scanner.scan(scores, 1 / temperature)
    blocks = -(-vocabulary // BLOCK)
    padded = torch.nn.functional.pad(scores, (0, blocks * BLOCK - vocabulary), value=float("-inf"))
    assert torch.equal(scan.maxima, padded.view(6, blocks, BLOCK).amax(-1))
    assert torch.allclose(scan.greatest + scan.log_mass, scores.double().logsumexp(-1).float(), atol=2e-6, rtol=1e-6)
    masses = ((padded.double() - scores.amax(-1, keepdim=True)) / temperature[:, None]).exp()
    expected = masses.view(6, blocks, BLOCK).sum(-1).float()
    assert scan.masses is not None
    assert torch.allclose(scan.masses, expected, rtol=1e-5, atol=1e-30)
    assert not scan.masses[scan.maxima == float("-inf")].any(), "what can't be drawn has no mass at all"


def test_logprobs_near_zero_are_exact(scanner: RowScanner) -> None:
    scores = torch.full((1, 1000), 1e3)
    scores[0, 7] += 12  # nearly certain; next to 1012, fp32 knows steps of 6e-5
    scan = scanner.scan(scores, None)
    exact = scores.double().log_softmax(-1)[0, 7]
    assert scan.logprobs(scores[:, 7:8], torch.tensor([0]))[0, 0] == pytest.approx(float(exact), abs=2e-6)


def test_masses_are_not_summed_for_nobody(scanner: RowScanner) -> None:
    assert scanner.scan(rows_of(100), None).masses is None


def test_a_row_is_read_alike_alone_and_among_others(scanner: RowScanner) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(40, 20_000, generator=generator)  # enough for several threads
    temperatures = torch.linspace(0.5, 2, 40)
    among = scanner.scan(scores, temperatures)
    alone = scanner.scan(scores[7:8].clone(), temperatures[7:8].clone())
    assert among.masses is not None
    assert alone.masses is not None
    assert torch.equal(among.masses[7:8], alone.masses)
    assert torch.equal(among.log_mass[7:8], alone.log_mass)


def test_scores_that_are_no_numbers_name_some_token(scanner: RowScanner) -> None:
    scores = torch.full((2, 1000), float("nan"))
    ids = scanner.best(scores, scanner.scan(scores, None), torch.tensor([0, 1]), 3)[1]
    assert ((ids >= 0) & (ids < 1000)).all()
