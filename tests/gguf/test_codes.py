"""Models in GGUF files run on the native kernels with their own codes, and say what torch says of their numbers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import nn

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.checkpoints.dequantizing_linear import DequantizingEmbedding, DequantizingLinear
from djl_python.engine.checkpoints.expert_stacks import modules_with_stacks
from djl_python.engine.checkpoints.loading import load_model
from djl_python.engine.native.library import library
from djl_python.engine.native.opening.proof import layers_to_see, prove
from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.runner.probe import Probe, ids_of_probe
from djl_python.engine.settings import BuiltInSettings
from djl_python.gguf.dequantizing import dequantize
from djl_python.gguf.summary import summary
from djl_python.gguf.types import TensorType
from djl_python.sources import local_path
from tests.engines import open_batch, run_to_end
from tests.gguf.models import random_model, write_model
from tests.kernels import kernels_or_skip

_IDS = [1, 5, 6, 7, 9, 12, 3, 4, 20, 21, 22, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 23, 24, 25, 26]
_TYPES = gguf.GGMLQuantizationType


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    kernels_or_skip(library)
    return tmp_path / "cache"


def written(tmp_path: Path, kind: str, of_type: _TYPES, **others: _TYPES) -> Path:
    write_model(random_model(kind), kind, tmp_path / "model.gguf", of_type, others)
    return local_path("model.gguf", "", tmp_path)


def loaded(path: Path, **settings: Any) -> Any:
    given = BuiltInSettings(model_path=str(path), **{"dtype": "fp32", "device": "cpu", "threads": 1, **settings})
    return load_model(given, lambda what, done, total: None)


def logprobs(path: Path, **settings: Any) -> torch.Tensor:
    """Log-probabilities of the text's tokens but the first, by the native program."""
    batch = open_batch(path, kernels="native", **settings)
    try:
        assert (batch.info.runner, batch.info.refusal) == ("native", "")
        batch.add(SequenceRequest(_IDS, SamplingParams(max_new_tokens=1, prompt_logprobs=0), id=1))
        told = run_to_end(batch)[1][0].prompt
        return torch.tensor([float(logprob or 0) for logprob, _ in told[1:]])
    finally:
        batch.close()


def expected(path: Path) -> torch.Tensor:
    """The same by torch, of the numbers that the codes stand for."""
    model = loaded(path, kernels="torch").model
    with torch.inference_mode():
        scores = model(torch.tensor([_IDS])).logits[0, :-1].log_softmax(-1)
    token_logprobs: torch.Tensor = scores.gather(1, torch.tensor(_IDS[1:])[:, None]).flatten()
    return token_logprobs


@pytest.mark.parametrize(
    ("kind", "of_type"),
    [
        ("llama", _TYPES.Q4_1),
        ("llama 3", _TYPES.Q8_0),
        ("qwen3", _TYPES.Q4_0),
        ("qwen2moe", _TYPES.Q5_0),
        ("qwen3moe", _TYPES.Q8_0),
        ("gemma2", _TYPES.Q5_1),
        ("phi3", _TYPES.Q8_0),
        ("starcoder2", _TYPES.Q8_0),
        ("falcon", _TYPES.Q8_0),
        ("falcon 40b", _TYPES.Q8_0),
    ],
)
def test_answers_are_those_of_the_numbers(tmp_path: Path, kind: str, of_type: _TYPES) -> None:
    path = written(tmp_path, kind, of_type)
    off = (logprobs(path, dtype="fp32") - expected(path)).abs()
    assert off.mean() < 0.05, off


def test_a_mixture_of_types(tmp_path: Path) -> None:
    """As in Q4_K_M: queries, keys and values are read by one product each, where their types differ."""
    path = written(tmp_path, "qwen2", _TYPES.Q5_0, attn_v=_TYPES.Q8_0, ffn_down=_TYPES.Q8_0, token_embd=_TYPES.Q4_0)
    off = (logprobs(path, dtype="fp32") - expected(path)).abs()
    assert off.mean() < 0.05, off


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
def test_gates_of_another_type_are_multiplied_by_themselves(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "djl_python")
    path = written(tmp_path, kind, _TYPES.Q8_0, ffn_gate=_TYPES.Q5_0)
    off = (logprobs(path, dtype="fp32") - expected(path)).abs()
    assert off.mean() < 0.05, off
    assert "their types differ" not in caplog.text


def test_experts_gates_of_another_type_become_numbers_and_the_log_says_what_that_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "djl_python")
    path = written(tmp_path, "qwen3moe", _TYPES.Q8_0, ffn_gate_exps=_TYPES.Q5_0)
    off = (logprobs(path, dtype="fp32") - expected(path)).abs()
    assert off.mean() < 0.05, off
    assert "weights of Q5_0 and Q8_0 become" in caplog.text and "their types differ" in caplog.text


def test_weights_stay_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen3moe", _TYPES.Q8_0, ffn_gate_inp=_TYPES.F32)
    model = loaded(path).model
    kept = [each for each in model.modules() if isinstance(each, nn.Linear | DequantizingLinear)]
    assert {type(each) for each in kept} == {DequantizingLinear}
    assert isinstance(model.get_input_embeddings(), DequantizingEmbedding)
    assert len(modules_with_stacks(model)) == 2
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert {name for name, size in sizes.items() if size > 64} == {
        f"model.layers.{layer}.mlp.gate.weight" for layer in range(2)
    }


@pytest.mark.parametrize("settings", [{"kernels": "torch"}, {"quantize": "int8"}])
def test_weights_become_numbers_where_others_multiply(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = written(tmp_path, "llama", _TYPES.Q8_0)
    assert not [each for each in loaded(path, **settings).model.modules() if isinstance(each, DequantizingLinear)]


def test_check_shows_which_types_run_on_their_codes(tmp_path: Path) -> None:
    written(tmp_path, "qwen2", _TYPES.Q8_0, ffn_down=_TYPES.F16)
    told = dict(summary(tmp_path / "model.gguf"))
    assert told["runs on its codes"] == "0.1 MiB of Q8_0, on CPUs"
    assert told["becomes option.dtype"] == "0.0 MiB of F16"


def test_kernels_make_all_numbers_of_codes_that_opening_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "llama", _TYPES.Q8_0)
    expected_logprobs = expected(path)
    dequantized: list[str] = []

    def noted(stored: Any, kind: TensorType) -> Any:
        dequantized.append(kind.name)
        return dequantize(stored, kind)

    monkeypatch.setattr("djl_python.gguf.weights.dequantize", noted)
    assert (logprobs(path, dtype="fp32") - expected_logprobs).abs().mean() < 0.05
    assert set(dequantized) == {"F32"}


def test_a_bias_in_blocks_has_its_own_order(tmp_path: Path) -> None:
    """Its numbers are one row of blocks, and queries' are in another order than transformers'."""
    path = written(tmp_path, "llama", _TYPES.Q8_0, **{"attn_q.bias": _TYPES.Q8_0, "attn_k.bias": _TYPES.Q8_0})
    assert (logprobs(path, dtype="fp32") - expected(path)).abs().mean() < 0.05


def test_of_a_large_file_as_many_layers_are_proved_as_of_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What codes become in fp32 counts, not what they take in the file; layers of codes have the same structure."""
    opened = loaded(written(tmp_path, "llama", _TYPES.Q8_0))
    recipe = read_recipe(opened.model, 64)
    assert layers_to_see(recipe) == len(recipe.layers) == 2
    monkeypatch.setattr("djl_python.engine.native.opening.proof.ALL_UP_TO", 0)
    assert layers_to_see(recipe) == 1
    monkeypatch.setattr("djl_python.engine.native.opening.proof.available_bytes", lambda: 1 << 18)
    prove(recipe, opened, Probe.of(ids_of_probe(opened, []), opened.vocabulary), 1)
    assert "not proved in fp32" in caplog.text
