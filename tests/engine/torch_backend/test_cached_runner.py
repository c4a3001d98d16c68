"""Sequences over transformers' own cache, however the scheduler cuts their prompts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV4Config,
    MiniMaxConfig,
    RecurrentGemmaConfig,
)

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.runner.model_runner import ModelRunner
from djl_python.engine.torch_backend.cached_runner import CachedModelRunner
from tests.checkpoints import CACHE, build_checkpoint, since
from tests.engines import generate, open_batch, run_to_end


def own_logprobs(path: Path, prompt: list[int], generated: list[int]) -> list[float]:
    """The generated tokens' log-probabilities by the model in fp32, which reads all at once, without a cache."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        read = model(torch.tensor([prompt + generated]), use_cache=False).logits[0]
    return [float(row[token]) for row, token in zip(read[len(prompt) - 1 : -1].log_softmax(-1), generated, strict=True)]


def test_prompts_that_do_not_fit_one_step_together(tmp_path: Path) -> None:
    """The budget of a step is the context's length: of three prompts at once, the second is cut."""
    path = build_checkpoint(tmp_path, "bloom")
    batch = open_batch(path, max_model_len=64, kernels="torch")
    prompts = [[2 + (7 * i + number) % 300 for i in range(40)] for number in range(3)]
    for number, prompt in enumerate(prompts):
        batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=9), id=number))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    expected = {number: generate(model, prompt, 9) for number, prompt in enumerate(prompts)}
    assert {number: [e.token_id for e in events] for number, events in run_to_end(batch).items()} == expected


@pytest.mark.parametrize("architecture", ["bloom", "mamba", "jamba"])
def test_a_prompt_that_comes_in_pieces_is_read_as_one(architecture: str, tmp_path: Path) -> None:
    """Mamba's function for prompts begins with a state of nothing."""
    path = build_checkpoint(tmp_path, architecture)
    runner = open_batch(path, kernels="torch").runner
    assert isinstance(runner, CachedModelRunner)
    assert runner.in_pieces == (architecture == "bloom")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    sequence = Sequence(1, list(range(5, 45)), 40, SamplingParams(max_new_tokens=1, prompt_logprobs=0))
    logits = []
    for length in (14, 3, 1, 21, 1):
        logits.append(runner.run([SequenceChunk(sequence, length)]))
        sequence.computed += length
    with torch.no_grad():
        expected = model(torch.tensor([sequence.tokens])).logits[0]
    assert torch.allclose(torch.cat(logits), expected, atol=1e-3 * float(expected.abs().max()))


class Around(torch.nn.Module):
    """A model within another."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner


class Impatient(Around):
    """A model that goes on with one token at a time, and says so as some do."""

    def forward(
        self, input_ids: torch.Tensor, past_key_values: Any = None, use_cache: bool = False, **named: Any
    ) -> Any:
        assert past_key_values is None or input_ids.shape[1] == 1
        return self.inner(input_ids, **{CACHE: past_key_values}, use_cache=use_cache, **named)


def test_a_model_that_refuses_pieces_is_given_the_whole(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(build_checkpoint(tmp_path, "bloom"), dtype=torch.float32)
    ids = list(range(3, 15))
    runner = CachedModelRunner.tried(Impatient(model), torch.device("cpu"), nullcontext, ids, 1e-3)
    assert not runner.in_pieces
    sequence = Sequence(1, ids, len(ids), SamplingParams(max_new_tokens=1))
    for length in (5, 7):
        logits = runner.run([SequenceChunk(sequence, length)])
        sequence.computed += length
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0, -1:]
    assert torch.allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_keeps_its_cache_to_itself_is_read_again(dtype: torch.dtype, tmp_path: Path) -> None:
    """In bf16, what its lost states change could pass for rounding."""
    torch.manual_seed(5)
    config = RecurrentGemmaConfig(
        **{"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "lru_width": 64},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "attention_window_size": 100},
        **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "w_init_variance_scale": 4.0},
    )
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(tmp_path)
    batch = open_batch(tmp_path)
    assert "transformers' own cache" in batch.description
    if dtype == torch.bfloat16:  # its choices are not those of fp32
        return
    prompts = [list(range(2 + number, 20 + 3 * number)) for number in range(3)]
    for number, prompt in enumerate(prompts):
        batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=6, ignore_eos=True), id=number))
    events = run_to_end(batch)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    for number, prompt in enumerate(prompts):
        for event in events[number]:  # in one pass each: generate's own cache is what this is about
            with torch.no_grad():
                expected = int(model(torch.tensor([prompt]), use_cache=False).logits[0, -1].argmax())
            assert event.token_id == expected
            prompt.append(expected)


@pytest.mark.parametrize("knows_positions", [True, False])
def test_a_model_whose_cache_does_not_count_tokens(
    knows_positions: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MiniMax's cache asks its first layer, which has a state. What decodes wrongly is read again instead."""
    if not knows_positions:
        monkeypatch.setattr(CachedModelRunner, "positions", lambda *_: {})
    torch.manual_seed(7)
    config = MiniMaxConfig(
        **{"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 32},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "block_size": 32},
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.2},
        **{"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    batch = open_batch(tmp_path)
    assert ("every step reads whole sequences" in caplog.text) != knows_positions
    prompt = list(range(2, 42))
    batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=8, ignore_eos=True), id=0))
    events = run_to_end(batch)[0]
    expected = own_logprobs(tmp_path, prompt, [event.token_id for event in events])
    assert [event.logprob for event in events] == pytest.approx(expected, abs=1e-3)


@since("5.13")
def test_a_model_that_needs_its_mask_has_its_own_attention(tmp_path: Path) -> None:
    """DeepSeek's sparse attention takes a part of the mask that a paged one has no use for."""
    torch.manual_seed(5)
    config = transformers.DeepseekV32Config(
        **{"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24},
        **{"qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 20, "max_position_embeddings": 256},
        **{"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
        **{"moe_intermediate_size": 32, "first_k_dense_replace": 1, "bos_token_id": 0, "eos_token_id": 1},
        **{"index_topk": 64, "index_n_heads": 2, "index_head_dim": 16},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    batch = open_batch(tmp_path)
    assert "transformers' own cache" in batch.description
    prompt = list(range(5, 95))
    batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=8, ignore_eos=True), id=0))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert [event.token_id for event in run_to_end(batch)[0]] == generate(model, prompt, 8)


_KINDS: dict[str, Any] = {
    "blocks of keys are chosen": lambda: transformers.MiniMaxM3VLTextConfig(
        **{"vocab_size": 320, "hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 16},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rotary_dim": 8},
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "dense_intermediate_size": 96},
        **{"shared_intermediate_size": 32, "initializer_range": 0.2, "bos_token_id": 0, "eos_token_id": 1},
        **{"layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"]},
        **{"index_n_heads": 2, "index_head_dim": 16, "index_block_size": 16, "index_topk_blocks": 2},
    ),
    "keys stand for several tokens": lambda: DeepseekV4Config(
        **{"vocab_size": 320, "hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16},
        **{"num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 256, "q_lora_rank": 24},
        **{"n_routed_experts": 6, "num_experts_per_tok": 2, "o_groups": 2, "o_lora_rank": 16, "hc_mult": 2},
        **{"qk_rope_head_dim": 8, "sliding_window": 24, "initializer_range": 0.2, "bos_token_id": 0},
        **{"layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"], "eos_token_id": 1},
        **{"mlp_layer_types": ["hash_moe", "moe"], "index_topk": 64, "index_n_heads": 2, "index_head_dim": 16},
    ),
}


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=since("5.13") if kind == "blocks of keys are chosen" else ()) for kind in _KINDS]
)
def test_a_model_whose_attention_reads_other_keys_than_a_paged_one(kind: str, kernels: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(_KINDS[kind]()).save_pretrained(tmp_path)
    batch = open_batch(tmp_path, kernels=kernels)
    assert "transformers' own cache" in batch.description
    prompt = list(range(5, 65))
    batch.add(SequenceRequest(prompt, SamplingParams(max_new_tokens=8, ignore_eos=True), id=0))
    events = run_to_end(batch)[0]
    expected = own_logprobs(tmp_path, prompt, [event.token_id for event in events])
    assert [event.logprob for event in events] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("architecture", ["bloom", "mpt"])
def test_sequences_wait_for_memory(architecture: str, tmp_path: Path) -> None:
    """Eight of them want three times what there is; what was computed of one that gives way goes."""
    path = build_checkpoint(tmp_path, architecture)
    roomy, tight = (
        open_batch(path, kernels="torch", kv_cache_memory_mb=megabytes, max_batch_size=8) for megabytes in (64, 1)
    )
    texts: list[dict[int, list[int]]] = []
    most = 0
    for batch in (roomy, tight):
        texts.append({number: [] for number in range(8)})
        for number in range(8):
            batch.add(
                SequenceRequest([7 + number] * 40, SamplingParams(max_new_tokens=150, ignore_eos=True), id=number)
            )
        while not batch.idle:
            for event in batch.step():
                texts[-1][event.request_id].append(event.token_id)
            if batch is tight:
                most = max(most, held_bytes(batch.runner))
    assert texts[0] == texts[1]
    assert 1 << 19 < most <= 1 << 20
    assert tight.stats.preemptions > 0


def held_bytes(runner: ModelRunner) -> int:
    """The bytes of all tensors in the runner's caches."""
    assert isinstance(runner, CachedModelRunner)
    layers = [layer for cache in runner.caches.values() for layer in cache.layers]
    values = [value for layer in layers for value in vars(layer).values()]
    tensors = [each for value in values for each in (value.values() if isinstance(value, dict) else [value])]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors if torch.is_tensor(each)}
    return sum(storage.nbytes() for storage in storages.values())
