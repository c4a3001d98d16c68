"""Embeddings of a trained model: those of sentence-transformers, and rounded the same order of similarities."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from djl_python.core.text_tasks import EmbedRequest, ScoreRequest, TextInput
from tests.handlers.encoding.harness import PlainTasks, ServedEncoder
from tests.real.minilm import minilm

TEXTS = (
    "What is deep learning?",
    "Deep learning trains neural networks of many layers.",
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "A man is eating pasta.",
    "Someone eats a plate of noodles.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "naïve café - 東京 🚀",
    "a",
    "word " * 400,
)
#: What sentence-transformers 5 makes of the first text: its first numbers.
FIRST = (
    *(-0.07785138487815857, -0.033280469477176666, 0.01974344253540039),
    *(0.00722644105553627, -0.015569325536489487, -0.02205827087163925),
)


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    path = minilm()
    if not path.is_dir():
        pytest.skip("all-MiniLM-L6-v2 has not been fetched: `make test` and `python -m tests.real.minilm` do")
    return path


@pytest.fixture(autouse=True)
def plain_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    from djl_python.dialects import DIALECTS

    monkeypatch.setitem(DIALECTS, "tasks", f"{PlainTasks.__module__}:PlainTasks")


@torch.inference_mode()
def by_transformers(path: Path) -> npt.NDArray[np.float32]:
    """The mean of the hidden states of at most 256 tokens, at unit length."""
    model, tokenizer = AutoModel.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(path)
    vectors = []
    for text in TEXTS:
        encoded = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        vectors.append(torch.nn.functional.normalize(model(**encoded).last_hidden_state[0].mean(0), dim=0).numpy())
    return np.stack(vectors)


def ranks(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return numbers.argsort().argsort()


@pytest.mark.parametrize("kernels", ["native", "torch"])
async def test_embeddings_are_those_of_sentence_transformers(checkpoint: Path, kernels: str) -> None:
    served = await ServedEncoder(checkpoint).load(kernels=kernels)
    assert served.engine.limits.info.runner == kernels
    requests = [EmbedRequest(text=TextInput(text=text, truncate="right")) for text in TEXTS]
    vectors = np.array([one["values"] for one in await served.ask(*requests)])
    np.testing.assert_allclose(vectors[0, : len(FIRST)], FIRST, atol=1e-5)
    np.testing.assert_allclose(vectors, by_transformers(checkpoint), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "least", "apart"),
    [
        ({"dtype": "bf16"}, 0.999, 0.02),
        ({"quantize": "int8"}, 0.99, 0.05),
        ({"quantize": "int8", "dtype": "bf16"}, 0.99, 0.05),
    ],
)
async def test_rounded_weights_order_pairs_as_fp32_does(
    checkpoint: Path, settings: dict[str, str], least: float, apart: float
) -> None:
    scores = []
    for chosen in ({"dtype": "fp32"}, {"kernels": "native", **settings}):
        served = await ServedEncoder(checkpoint).load(task="sentence-similarity", **chosen)
        pairs = itertools.combinations(TEXTS[:-1], 2)
        scored = await served.ask(*(ScoreRequest(text=TextInput(text=one, pair=other)) for one, other in pairs))
        scores.append(np.array([one["value"] for one in scored]))
        assert len(served.engine.requests[0]) == len(TEXTS) - 1
    assert np.corrcoef(ranks(scores[0]), ranks(scores[1]))[0, 1] > least
    np.testing.assert_allclose(scores[1], scores[0], atol=apart)
