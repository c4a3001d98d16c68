"""Each row of a step is computed with its own adapter, as peft computes it, and rows without one as the base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from djl_python.core.errors import ParameterError
from djl_python.core.types import SamplingParams
from djl_python.engine.adapters.peft_files import LoraAdapter, LowRank
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.checkpoints.linears import Linear
from djl_python.engine.checkpoints.rounding import Quantize
from djl_python.engine.torch_backend.adapters import TorchAdapters
from djl_python.engine.torch_backend.linears import on_torch
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch
from tests.peft_adapters import BASE, PEFT_WARNS, check_texts, generated, logprobs_of, peft_model, prompts, save_adapter

pytestmark = PEFT_WARNS

_ARCHITECTURES = (
    *("llama", "gemma2", "gpt2", "opt_350m", "falcon_h1", "lfm2"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3", "phi", "qwen3_moe", "qwen3_next", "bloom")),
)


@pytest.mark.parametrize("architecture", _ARCHITECTURES)
def test_a_mixed_batch_is_pefts(architecture: str, tmp_path: Path) -> None:
    """Prompts in pieces beside decoding sequences; all linears of the decoder, and numbers as trained models have."""
    checkpoint = build_checkpoint(tmp_path / "base", architecture, sinks=True)
    adapters = {"a": save_adapter(checkpoint, tmp_path / "a", 1), "b": save_adapter(checkpoint, tmp_path / "b", 2, r=2)}
    names = ["a", BASE, "b", "a", BASE, "b"]
    texts = prompts(len(names))
    directories = {name: str(path) for name, path in adapters.items()}
    batch = open_batch(checkpoint, kernels="torch", enable_lora=True, adapters=directories, dtype="fp32")
    plain = open_batch(checkpoint, kernels="torch", dtype="fp32")
    try:
        made = generated(batch, texts, names)
        check_texts(peft_model(checkpoint, adapters), texts, names, made)
        for ours, base, name in zip(made, generated(plain, texts, [BASE] * len(texts)), names, strict=True):
            if name == BASE:
                assert [event.token_id for event in ours] == [event.token_id for event in base]
                torch.testing.assert_close(logprobs_of(ours), logprobs_of(base), rtol=1e-5, atol=1e-5)
            else:
                assert (logprobs_of(ours) - logprobs_of(base)).abs().max() > 0.01
    finally:
        batch.close()
        plain.close()


def test_embeddings_and_a_tied_lm_head_are_pefts(tmp_path: Path) -> None:
    checkpoint = build_checkpoint(tmp_path / "base", "gemma2")  # tied, and scaled
    adapters = {name: tmp_path / name for name in ("a", "b")}
    save_adapter(checkpoint, tmp_path / "a", 1, target_modules=["embed_tokens", "v_proj"])
    save_adapter(checkpoint, tmp_path / "b", 2, target_modules=["lm_head"])
    names = ["a", BASE, "b"]
    texts = prompts(3)
    directories = {name: str(path) for name, path in adapters.items()}
    batch = open_batch(checkpoint, kernels="torch", enable_lora=True, adapters=directories, dtype="fp32")
    try:
        check_texts(peft_model(checkpoint, adapters), texts, names, generated(batch, texts, names))
    finally:
        batch.close()


class Small(nn.Module):
    """Two linears and an embedding, as a model of transformers has them."""

    def __init__(self, quantize: Quantize | None) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.dtype = torch.float32
        self.embed = nn.Embedding(40, 64)
        linear = nn.Linear(64, 32)
        rounded = None if quantize is None else on_torch(Linear(linear.weight.data, linear.bias.data), quantize)
        self.linear = rounded or linear
        self.head = nn.Linear(32, 40)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def random_product(outputs: int, inputs: int, rank: int) -> LowRank:
    return LowRank(torch.randn(rank, inputs), torch.randn(outputs, rank))


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("length", [3, 90], ids=["short", "long"])
@torch.inference_mode()
def test_each_row_has_its_own_products_in_every_format_of_weights(length: int, quantize: Quantize | None) -> None:
    model = Small(quantize)
    adapters = TorchAdapters(model, torch.device("cpu"))
    loaded = {
        1: {"linear": random_product(32, 64, 3), "embed": random_product(64, 40, 2)},
        2: {"linear": random_product(32, 64, 1), "head": random_product(40, 32, 2)},
        3: {"linear": random_product(32, 64, 2)},
    }
    for slot, products in loaded.items():
        adapters.load(slot, LoraAdapter(3, products))
    adapters.unload(3)
    slots = [1, 0, 2, 1]
    chunks = [
        SequenceChunk(Sequence(n, [5] * length, length, SamplingParams(max_new_tokens=1), adapter_slot=slot), length)
        for n, slot in enumerate(slots)
    ]
    rows = [slot for slot in slots for _ in range(length)]
    ids, x = torch.randint(40, (1, len(rows))), torch.randn(1, len(rows), 64)
    keep = [length - 1, 2 * length - 1, 3 * length - 1]
    base = model.embed(ids), model.linear(x), model.head(x[:, keep, :32])
    with adapters.over(chunks, keep):
        made = model.embed(ids), model.linear(x), model.head(x[:, keep, :32])
    for n, slot in enumerate(rows):
        own = loaded.get(slot, {})
        embedded = own["embed"].b @ own["embed"].a[:, ids[0, n]] if "embed" in own else 0
        torch.testing.assert_close(made[0][0, n], base[0][0, n] + embedded)
        added = own["linear"].b @ (own["linear"].a @ x[0, n]) if own else 0
        torch.testing.assert_close(made[1][0, n], base[1][0, n] + added, rtol=1e-4, atol=1e-4)
        if not own:
            assert torch.equal(made[1][0, n], base[1][0, n])
    for n, slot in enumerate(rows[row] for row in keep):
        own = loaded.get(slot, {})
        head = own["head"].b @ (own["head"].a @ x[0, keep[n], :32]) if "head" in own else 0
        torch.testing.assert_close(made[2][0, n], base[2][0, n] + head, rtol=1e-4, atol=1e-4)
    assert torch.equal(model.linear(x), base[1]), "outside of a step with adapters it is the base"
    for slot in loaded:
        adapters.unload(slot)
    assert adapters.bytes == 0
    assert not model.linear._forward_hooks


def test_numbers_that_a_format_has_no_room_for_are_refused() -> None:
    model = Small(None)
    model.dtype = torch.float16
    adapters = TorchAdapters(model, torch.device("cpu"))
    product = LowRank(torch.full((1, 64), 1e6), torch.ones(32, 1))
    with pytest.raises(ParameterError, match=r"its numbers for linear are too large for torch\.float16"):
        adapters.load(1, LoraAdapter(1, {"linear": product}))
    assert adapters.bytes == 0
