"""Tokens for masks equal those of transformers' pipeline; SPLADE's weights are those of its formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import transformers

from djl_python.core import budgets
from djl_python.core.errors import ParameterError, PayloadError
from djl_python.core.text_tasks import EmbedRequest, FillRequest, Granularity, ScoreRequest, TextInput
from tests.encoders import write_encoder, write_modules
from tests.handlers.conftest import Watch
from tests.handlers.encoding.harness import ResultsFormatter, ServedEncoder
from tests.handlers.encoding.test_embeddings import ids_of


async def test_filled_masks_equal_the_pipelines(tmp_path: Path) -> None:
    write_encoder(tmp_path, auto_class="AutoModelForMaskedLM", vocab_size=19)
    pipeline: Any = transformers.pipeline("fill-mask", str(tmp_path))
    served = await ServedEncoder(tmp_path).load()
    assert served.handler.task == "fill-mask"
    for text, top, targets in (
        ("the [MASK] sat", 3, []),
        ("a [MASK] saw the [MASK]", 2, []),
        ("the [MASK]", 5, ["cat", "birds"]),
    ):
        expected = pipeline(text, top_k=top, targets=targets or None)
        masks = [expected] if isinstance(expected[0], dict) else expected
        (filled,) = await served.ask(FillRequest(text=TextInput(text=text), top=top, targets=tuple(targets)))
        for mine, theirs in zip(filled["masks"], masks, strict=True):
            for one, other in zip(mine, theirs, strict=True):
                assert one["score"] == pytest.approx(other["score"], abs=1e-5)
                assert (one["token"], one["token_text"], one["sequence"]) == (
                    other["token"],
                    other["token_str"],
                    other["sequence"],
                )
    with pytest.raises(ParameterError, match=r"inputs: expected a text with \[MASK\]"):
        await served.ask(FillRequest(text=TextInput(text="the cat", field="inputs")))


async def test_a_request_for_too_many_wide_vectors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks and sparse embeddings: each has a number for every token of the vocabulary."""
    write_encoder(tmp_path, auto_class="AutoModelForMaskedLM")
    monkeypatch.setattr(budgets, "WIDE_VECTORS", budgets.WIDE_VECTORS._replace(most=2))
    masks = await ServedEncoder(tmp_path).load()

    def fill(text: str) -> FillRequest:
        return FillRequest(text=TextInput(text=text, field="inputs"))

    assert len(await masks.ask(fill("the [MASK]"), fill("a [MASK]"))) == 2
    for texts in (["[MASK] [MASK] [MASK]"], ["the [MASK]", "[MASK] [MASK]"]):
        with pytest.raises(PayloadError, match="expected at most 2 masks or sparse vectors together, got 3"):
            await masks.ask(*map(fill, texts))
    write_modules(tmp_path, "SpladePooling")
    sparse = await ServedEncoder(tmp_path).load()
    wanted = EmbedRequest(text=TextInput(text="the cat"), granularity=Granularity.SPARSE)
    assert len(await sparse.ask(wanted, wanted)) == 2
    different = [msgspec.structs.replace(wanted, text=TextInput(text=text)) for text in ("a", "the", "two")]
    with pytest.raises(PayloadError, match="expected at most 2 masks or sparse vectors together, got 3"):
        await sparse.ask(*different)


async def test_sparse_embeddings(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, auto_class="AutoModelForMaskedLM")
    write_modules(tmp_path, "SpladePooling")
    served = await ServedEncoder(tmp_path).load()
    assert served.handler.task == "feature-extraction"

    @torch.inference_mode()
    def weights(text: str) -> Any:
        return model(torch.tensor([ids_of(text)])).logits[0].relu().log1p().amax(0).numpy()

    text, other = "the cat sat", "two birds"
    sparse = EmbedRequest(text=TextInput(text=text), granularity=Granularity.SPARSE)
    (embedding, _) = await served.ask(sparse, EmbedRequest(text=TextInput(text=other), granularity=Granularity.SPARSE))
    expected = weights(text)
    assert embedding["indices"] == np.flatnonzero(expected).tolist()
    np.testing.assert_allclose(embedding["values"], expected[expected > 0], atol=1e-5)
    (score,) = await served.ask(ScoreRequest(text=TextInput(text=text, pair=other)))
    one, two = (weights(each) / np.linalg.norm(weights(each)) for each in (text, other))
    assert score["value"] == pytest.approx(float(one @ two), abs=1e-5)


async def test_a_request_for_too_many_answers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is written with its whole text: a small body asks for gigabytes of them."""
    write_encoder(tmp_path, auto_class="AutoModelForMaskedLM", vocab_size=19)
    monkeypatch.setattr(budgets, "FILLINGS", budgets.FILLINGS._replace(most=6))
    served = await ServedEncoder(tmp_path).load()

    def fill(text: str, top: int, *targets: str) -> FillRequest:
        return FillRequest(text=TextInput(text=text, field="inputs"), top=top, targets=targets)

    for requests in (
        [fill("a [MASK] saw the [MASK]", 3)],
        [fill("the [MASK]", 3), fill("a [MASK]", 3)],
        [fill("[MASK] [MASK] [MASK]", 1000, "cat", "mat")],
    ):
        results = await served.ask(*requests)
        assert sum(len(mask) for result in results for mask in result["masks"]) == 6
    for requests in ([fill("a [MASK] saw the [MASK]", 4)], [fill("the [MASK]", 4), fill("a [MASK]", 3)]):
        with pytest.raises(PayloadError, match=r"expected at most 6 answers together, got [78]: top_k for each mask"):
            await served.ask(*requests)


async def test_a_long_answer_is_made_off_the_loop(tmp_path: Path, watch: Watch) -> None:
    write_encoder(tmp_path, auto_class="AutoModelForMaskedLM")
    served = await ServedEncoder(tmp_path).load()
    went_on = watch(ResultsFormatter, "push")
    text = " ".join(["[MASK]"] * 50)
    for masks, off in ((1, False), (50, False), (200, True)):  # of 64 numbers each
        went_on.clear()
        requests = [FillRequest(text=TextInput(text=text if masks > 1 else "[MASK]"))] * max(1, masks // 50)
        results = await served.ask(*requests)
        assert [len(result["masks"]) for result in results] == [min(masks, 50)] * len(requests)
        assert went_on == [off] * len(requests)
