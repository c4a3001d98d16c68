"""Adapters of bases stored as codes, of GPTQ and its like: each row is peft's on what the codes stand for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor

from djl_python.engine.checkpoints.dequantizing_linear import DequantizingLinear
from djl_python.engine.checkpoints.linears import as_linear
from djl_python.engine.checkpoints.loading import load_model
from djl_python.engine.native.library import library
from djl_python.engine.native.modules.linears import NativeLinears
from djl_python.engine.settings import BuiltInSettings
from djl_python.engine.torch_backend.linears import on_torch
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch
from tests.kernels import kernels_or_skip
from tests.peft_adapters import (
    BASE,
    PEFT_WARNS,
    check_texts,
    generated,
    logprobs_of,
    peft_model,
    prompts,
    save_adapter,
    theirs,
)
from tests.quantized_checkpoints import Method, write_quantized

pytestmark = PEFT_WARNS

NAMES: Final = ["a", BASE, "b", "a", BASE, "b"]
#: Groups of 32 inputs, which no kernel multiplies as codes: they are numbers again once the model is open.
_NUMBERS: Final = [Method("gptq", group_size=32, act_order=True), Method("gemm", group_size=32)]
_CODES: Final = [
    ("llama", Method("gptq", symmetric=True)),
    ("llama", Method("gemm")),
    ("llama", Method("gptq", act_order=True)),  # whose inputs are in another order than the adapter's
    ("gpt2", Method("gptq")),
    pytest.param("qwen2", Method("gemm"), marks=pytest.mark.slow),
    pytest.param("llama", Method("pack-quantized"), marks=pytest.mark.slow),
]


@pytest.fixture(params=["torch", "native"])
def kernels(request: pytest.FixtureRequest) -> str:
    if request.param == "native":
        kernels_or_skip(library)
    return str(request.param)


class Quantized:
    """A checkpoint of codes, and two adapters of all its linears but the head."""

    def __init__(self, tmp_path: Path, architecture: str, method: Method) -> None:
        source = build_checkpoint(tmp_path / "source", architecture)
        self.path = write_quantized(source, tmp_path / "codes", method, transposed=architecture == "gpt2")
        self.adapters = {
            name: save_adapter(source, tmp_path / name, rank, r=rank) for name, rank in (("a", 3), ("b", 9))
        }

    def open(self, kernels: str) -> Any:
        directories = {name: str(path) for name, path in self.adapters.items()}
        return open_batch(self.path, kernels=kernels, enable_lora=True, adapters=directories, dtype="fp32")

    def peft(self) -> Any:
        """peft's model, of the numbers that the codes stand for."""
        return peft_model(self.path / "dense", self.adapters)

    @contextmanager
    def peft_on_codes(self, kernels: str) -> Iterator[Any]:
        """peft's model, whose bases' products are those of the engine with the codes."""
        loaded = load_model(BuiltInSettings(model_path=str(self.path), dtype="fp32"), lambda *_: None)
        natively = NativeLinears(torch.float32, 1)
        model = self.peft()
        for name, module in model.base_model.model.named_modules():
            if isinstance(module, LoraLayer):
                stored = loaded.model.get_submodule(name)
                linear = as_linear(stored)
                assert isinstance(stored, DequantizingLinear) and linear is not None
                product = natively.make(linear, None) if kernels == "native" else on_torch(linear, None)
                assert product is not None
                module.base_layer = product
        yield model
        natively.close()


def differences(ours: Tensor, expected: Tensor) -> Tensor:
    """(texts,) the greatest of each text."""
    return (ours - expected).abs().amax(1)


@pytest.mark.parametrize("method", _NUMBERS, ids=str)
def test_a_mixed_batch_is_pefts_on_the_dequantized_base(tmp_path: Path, method: Method, kernels: str) -> None:
    made, texts = Quantized(tmp_path, "llama", method), prompts(len(NAMES))
    batch = made.open(kernels)
    try:
        assert method.name in batch.description
        check_texts(made.peft(), texts, NAMES, generated(batch, texts, NAMES))
    finally:
        batch.close()


@pytest.mark.parametrize(("architecture", "method"), _CODES, ids=str)
def test_a_mixed_batch_is_pefts_beside_the_engines_products_of_codes(
    tmp_path: Path, architecture: str, method: Method, kernels: str
) -> None:
    """What codes are multiplied with is rounded, to 8 bits or bf16; what adapters multiply is not.

    A number between two roundings may fall to either side, and changes what comes after it in its text a little. Most
    texts have none.
    """
    made, texts = Quantized(tmp_path, architecture, method), prompts(len(NAMES))
    batch = made.open(kernels)
    try:
        assert f"with {method.name} weights" in batch.description
        events = generated(batch, texts, NAMES)
    finally:
        batch.close()
    ours = torch.stack([*map(logprobs_of, events)])
    with made.peft_on_codes(kernels) as model:
        _, expected = theirs(model, texts, NAMES, events)
        _, of_base = theirs(model, texts, [BASE] * len(NAMES), events)
    off = differences(ours, expected)
    assert off.median() < 1e-4
    assert off.max() < 0.1
    effects = differences(expected, of_base)
    assert [bool(effect > 0.5) for effect in effects] == [name != BASE for name in NAMES]
