"""A trained LoRA adapter says with us what it says with peft, beside the base in one batch and with drafts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.testing import running_server
from tests.engines import run_to_end
from tests.peft_adapters import PEFT_WARNS
from tests.real.adapter import BEGIN, END, RANK, adapter, prompt
from tests.real.conftest import opened
from tests.real.fetch import UnavailableError

pytestmark = [pytest.mark.slow, PEFT_WARNS]

NAME: Final = "captain"
TOKENS: Final = 32
#: It was not trained on these.
QUESTIONS: Final = (
    "What is the capital of France?",
    "Who wrote Romeo and Juliet?",
    "Name a color.",
    "How many legs does a dog have?",
)
ADAPTED: Final[dict[str, Any]] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK}


@pytest.fixture(scope="module")
def trained(smol: Path) -> Path:
    try:
        return adapter()
    except UnavailableError as reason:
        pytest.skip(f"the trained adapter: {reason}")


@pytest.fixture(scope="module")
def asked(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(prompt(question))["input_ids"] for question in QUESTIONS]


@pytest.fixture(scope="module")
def expected(smol: Path, trained: Path, asked: list[list[int]]) -> dict[str, list[list[int]]]:
    """What peft generates with the adapter, and transformers without; in fp32."""
    from peft import PeftModel

    base: Any = AutoModelForCausalLM.from_pretrained(smol, dtype=torch.float32)
    generated = {"": [_generated(base, ids) for ids in asked]}
    return generated | {NAME: [_generated(PeftModel.from_pretrained(base, trained).eval(), ids) for ids in asked]}


def _generated(model: Any, ids: list[int]) -> list[int]:
    with torch.inference_mode():
        text = torch.tensor([ids])
        made = model.generate(
            input_ids=text, attention_mask=torch.ones_like(text), max_new_tokens=TOKENS, do_sample=False, pad_token_id=2
        )
    return list(made[0, len(ids) :].tolist())


@contextmanager
def running(smol: Path, trained: Path, **settings: Any) -> Iterator[PagedRollingBatch]:
    with opened(smol, **ADAPTED, adapters={NAME: str(trained)}, **settings) as batch:
        assert (batch.info.runner, batch.info.refusal) == ("native", "")
        yield batch


def answers(batch: PagedRollingBatch, asked: list[list[int]], *names: str) -> dict[str, list[list[int]]]:
    """The ids for all prompts with each adapter, all of them at once and in turn."""
    sampling = SamplingParams(max_new_tokens=TOKENS)
    requests = [(name, ids) for ids in asked for name in names]
    for number, (name, ids) in enumerate(requests):
        batch.add(SequenceRequest(ids, sampling, id=number, adapter=name))
    events = run_to_end(batch)
    generated: dict[str, list[list[int]]] = {name: [] for name in names}
    for number, (name, _) in enumerate(requests):
        generated[name].append([event.token_id for event in events[number]])
    return generated


def in_form(text: str) -> bool:
    return text.strip().startswith(BEGIN) and text.strip().endswith(END)


def test_trained_answers_have_their_form(expected: dict[str, list[list[int]]], tokenizer: Any) -> None:
    texts = {name: tokenizer.batch_decode(ids, skip_special_tokens=True) for name, ids in expected.items()}
    assert all(map(in_form, texts[NAME])), texts[NAME]
    assert not any(BEGIN in text or END in text for text in texts[""])


@pytest.mark.parametrize("drafts", ["none", "ngram", "draft"])
def test_texts_in_fp32_are_pefts(
    smol: Path, trained: Path, asked: list[list[int]], expected: dict[str, list[list[int]]], drafts: str
) -> None:
    """Drafts are looked up, or the base's own, and checked with the adapter."""
    draft = {"draft_model_path": str(smol)} if drafts == "draft" else {}
    with running(smol, trained, dtype="fp32", speculative=drafts, **draft) as batch:
        assert answers(batch, asked, NAME, "") == expected
        assert answers(batch, asked, NAME) == {NAME: expected[NAME]}
        if drafts == "draft":
            assert batch.stats.accepted_draft_tokens > 0


def test_texts_in_bf16_have_its_form(smol: Path, trained: Path, asked: list[list[int]], tokenizer: Any) -> None:
    with running(smol, trained, dtype="bf16") as batch:
        mixed, alone = answers(batch, asked, NAME, ""), answers(batch, asked, "")
    assert all(map(in_form, tokenizer.batch_decode(mixed[NAME], skip_special_tokens=True)))
    assert mixed[""] == alone[""]


def test_a_server_says_the_same(
    smol: Path,
    trained: Path,
    expected: dict[str, list[list[int]]],
    tokenizer: Any,
    tmp_path: Path,
) -> None:
    """Requests of two APIs, with the adapter and without, at once, and with drafts that are looked up."""
    for file in smol.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / NAME).symlink_to(trained)
    settings = "option.dtype=fp32\noption.max_model_len=512\noption.speculative=ngram\noption.kernels=native\n"
    (tmp_path / "serving.properties").write_text(settings)

    def ask(index: int, name: str) -> str:
        question = prompt(QUESTIONS[index // 2])
        body: dict[str, Any]
        if index % 2:
            body = {"inputs": question, "parameters": {"max_new_tokens": TOKENS}, "adapters": name}
            return str(client.post("/invocations", json=body).json()["generated_text"])
        body = {"model": name or "smol", "prompt": question, "max_tokens": TOKENS, "temperature": 0}
        return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])

    texts = {name: tokenizer.batch_decode(ids, skip_special_tokens=True) for name, ids in expected.items()}
    wanted = [(index, name) for index in range(2 * len(QUESTIONS)) for name in (NAME, "")]
    with (
        running_server("-m", f"smol={tmp_path}", start_timeout_s=300) as server,
        httpx.Client(base_url=server.url, timeout=300) as client,
        ThreadPoolExecutor(len(wanted)) as pool,
    ):
        got = list(pool.map(ask, *zip(*wanted, strict=True)))
        assert 'runner="native"' in client.get("/metrics").text
    assert got == [texts[name][index // 2] for index, name in wanted]
