"""What is different on a GPU: kernels of attention, the cache's size, a draft model's share, how draws are computed.

Each test runs on torch on a CPU too, so that it is right when there is a GPU.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams, TokenEvent
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.torch_backend.paged_runner import PagedModelRunner
from tests.checkpoints import VOCABULARY, build_checkpoint
from tests.engines import generate, open_batch, random_requests, run_to_end

SAMPLING: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "temperature": 0.8},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.9},
    {"do_sample": True, "temperature": 0.7, "top_k": 50},
    {"do_sample": True, "min_p": 0.05},
    {"do_sample": True, "typical_p": 0.9},
    {"do_sample": True, "typical_p": 0.5, "top_k": 30},
    {"do_sample": True, "top_p": 0.95, "repetition_penalty": 1.1},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"logit_bias": {5: 3.0}},
    {"bad_words_ids": ((7,), (8, 9)), "min_new_tokens": 3},
    {"top_logprobs": 5},
    {"prompt_logprobs": 2},
]


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")],
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False  # which it is by default
    return name


def opened(path: Path, device: str, **settings: Any) -> PagedRollingBatch:
    return open_batch(path, device=device, kernels="torch", **settings)


def tokens(events: dict[int, list[TokenEvent]]) -> dict[int, list[int]]:
    return {number: [event.token_id for event in sequence_events] for number, sequence_events in events.items()}


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss"])  # groups; and softcap, and sinks
def test_attention_in_bf16_over_long_contexts_is_that_of_the_model(
    architecture: str, device: str, tmp_path: Path
) -> None:
    path = build_checkpoint(tmp_path, architecture, torch.bfloat16)
    batch = opened(path, device, dtype="bf16", max_prefill_tokens=64)
    assert "KV cache" in batch.description
    rng = random.Random(1)
    prompts = {number: [rng.randrange(2, VOCABULARY) for _ in range(length)] for number, length in enumerate((210, 30))}
    for number, prompt in prompts.items():
        batch.add(
            SequenceRequest(
                prompt, SamplingParams(max_new_tokens=20, ignore_eos=True, prompt_logprobs=0, logprobs=True), id=number
            )
        )
    events = run_to_end(batch)
    for number, prompt in prompts.items():
        made = [event.token_id for event in events[number]]
        text = torch.tensor([[*prompt, *made]])
        exact, rounded = (told(path, text, dtype, device) for dtype in (torch.float32, torch.bfloat16))
        entries = events[number][0].prompt[1:]
        logprobs = torch.tensor([logprob for logprob, _ in entries] + [event.logprob for event in events[number]])
        assert (logprobs - exact).norm() <= 1.5 * (rounded - exact).norm(), "as near as the model's own"


def told(path: Path, text: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    """Log-probabilities of a text's tokens but the first, by the model with the plainest of its attentions."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").to(device)
    with torch.no_grad():
        logprobs: Tensor = model(text.to(device)).logits[0, :-1].float().log_softmax(-1).cpu()
    return logprobs.gather(1, text[0, 1:, None])[:, 0]


def check_greedy_ids(batch: PagedRollingBatch, path: Path, count: int, seed: int) -> None:
    """Some requests at once get the ids that transformers generates for each."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    requests = random_requests(count, seed)
    for number, (prompt, new_tokens) in enumerate(requests):
        batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=new_tokens), id=number))
    expected = {number: generate(model, prompt, new_tokens) for number, (prompt, new_tokens) in enumerate(requests)}
    assert tokens(run_to_end(batch)) == expected


def test_a_cache_that_is_sized_by_what_is_free(device: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    batch = opened(path, device, kv_cache_memory_mb=None)
    assert (batch.max_model_len, batch.kv_blocks) == (256, 8 * 256 // 16), "there is room for all that a batch can use"
    check_greedy_ids(batch, path, 8, seed=9)


def test_a_draft_model_beside_the_model(device: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    batch = opened(path, device, kv_cache_memory_mb=None, speculative="draft", draft_model_path=str(path))
    check_greedy_ids(batch, path, 6, seed=2)
    assert batch.stats.accepted_draft_tokens > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("speculative", ["none", "ngram"])
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_steps_are_recorded_unless_that_is_refused(enforce_eager: bool, speculative: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    batch = opened(
        path, "cuda", kv_cache_memory_mb=None, enforce_eager=enforce_eager, speculative=speculative, max_batch_size=24
    )
    assert batch.info.runner == ("torch-paged" if enforce_eager else "torch-paged (CUDA graphs)")
    check_greedy_ids(batch, path, 40, seed=3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_model_that_cannot_be_recorded_is_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: PagedModelRunner, *sizes: Any) -> None:
        raise RuntimeError("an operation asks the host")

    monkeypatch.setattr(PagedModelRunner, "record_steps", refuse)
    path = build_checkpoint(tmp_path, "llama")
    batch = opened(path, "cuda")
    assert batch.info.runner == "torch-paged"
    check_greedy_ids(batch, path, 4, seed=3)


def test_every_kind_of_draw_is_that_of_a_cpu(device: str, tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    made = []
    for name in ("cpu", device):
        batch = opened(path, name, dtype="fp32")
        rng = random.Random(5)
        for number, params in enumerate(SAMPLING):
            prompt = [rng.randrange(2, VOCABULARY) for _ in range(rng.choice([1, 3, 17, 40]))]
            batch.add(
                SequenceRequest(
                    prompt, SamplingParams(max_new_tokens=12, seed=number, ignore_eos=True, **params), id=number
                )
            )
        made.append(tokens(run_to_end(batch)))
    assert made[0] == made[1]
