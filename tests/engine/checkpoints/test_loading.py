"""From a checkpoint to a model that can run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Gemma4TextConfig, GemmaConfig

from djl_python.core.errors import ModelLoadError
from djl_python.engine.checkpoints import loading
from djl_python.engine.checkpoints.loading import load_model, threads_of
from djl_python.engine.devices.device import SlowFormat
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint


def load(path: Path, dtype: str = "auto", device: str = "cpu") -> torch.dtype:
    settings = BuiltInSettings(model_path=str(path), dtype=dtype, device=device, threads=1)
    loaded = load_model(settings, lambda what, done, total: None)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {loaded.dtype}
    return loaded.dtype


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("fp16"), "llama", torch.float16)


@pytest.mark.parametrize("dtype", ["auto", "fp16"])
def test_on_a_cpu_fp16_is_computed_as_bf16_and_that_is_said(
    halves: Path, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert load(halves, dtype) == torch.bfloat16
    assert [record.getMessage() for record in caplog.records if record.name.startswith("djl_python")] == [
        "fp16 is computed as bf16 on a CPU; option.dtype=fp32 keeps every bit"
    ]


@pytest.mark.parametrize(("architecture", "way"), [("gemma3", True), ("gemma", True), ("gemma4", "all")])
def test_a_model_whose_tokens_attend_to_later_ones_is_refused(architecture: str, way: object, tmp_path: Path) -> None:
    """Each step read everything anew, and its tokens were not those of transformers' `generate`."""
    kind = {"gemma3": Gemma3TextConfig, "gemma": GemmaConfig, "gemma4": Gemma4TextConfig}[architecture]
    kind(use_bidirectional_attention=way).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=r"attend to later ones \(use_bidirectional_attention in config\.json\)"):
        load(tmp_path)


@pytest.mark.skipif(not hasattr(transformers, "InklingTextConfig"), reason="this transformers has no such model")
def test_a_padded_vocabulary_ends_where_logits_do(tmp_path: Path) -> None:
    """A bias for a token without a logit would make a step fail."""
    config = transformers.InklingTextConfig(
        **{"vocab_size": 320, "unpadded_vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "pad_token_id": 0},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    loaded = load_model(BuiltInSettings(model_path=str(tmp_path), threads=1), lambda what, done, total: None)
    with torch.inference_mode():
        assert loaded.model(torch.tensor([[2, 3]])).logits.shape[-1] == loaded.vocabulary == 300


def test_a_checkpoint_without_weights_of_its_model_is_refused(tmp_path: Path) -> None:
    """transformers would make up random ones, and say so in a warning."""
    path = build_checkpoint(tmp_path, "llama")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(ModelLoadError, match=r"without 9 of the weights that LlamaForCausalLM needs: .*layers\.3\."):
        load(path)


def test_a_weight_of_another_shape_is_named(tmp_path: Path) -> None:
    """transformers would say "For details look at the above report!"."""
    path = build_checkpoint(tmp_path, "llama")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    said = r"2 of the weights .* have other shapes: lm_head\.weight has \(\d+, (\d+)\), expected \(7, \1\)"
    with pytest.raises(ModelLoadError, match=said):
        load(path)


def test_a_file_that_is_not_complete_is_named(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: not a complete safetensors file"):
        load(path)


class _Opened:
    """Pickled, it writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path, str]]:
        return Path.write_text, (self.path, "run")


def test_a_pickle_of_weights_runs_nothing(tmp_path: Path) -> None:
    path, written = build_checkpoint(tmp_path, "llama"), tmp_path / "written"
    weights = path / "model.safetensors"
    held = weights.stat().st_size
    weights.unlink()
    torch.save({"model.embed_tokens.weight": _Opened(written), "filler": torch.zeros(held)}, path / "pytorch_model.bin")
    with pytest.raises(Exception, match=r"[Ww]eights"):
        load(path)
    assert not written.exists()
    torch.load(path / "pytorch_model.bin", weights_only=False)
    assert written.exists()  # it would have


def test_fp16_that_the_configuration_does_not_mention_is_computed_as_bf16(halves: Path, tmp_path: Path) -> None:
    for file in halves.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    del config["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(tmp_path) == torch.bfloat16


@pytest.mark.parametrize(("dtype", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_dtype_that_was_asked_for_is_used(
    halves: Path, dtype: str, expected: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(halves, dtype) == expected
    assert not [record for record in caplog.records if record.name.startswith("djl_python")]


def test_a_format_that_the_device_lacks_is_replaced_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a GPU without bf16."""
    lacking = SlowFormat(torch.bfloat16, torch.float16, "this is slow")
    monkeypatch.setattr(loading, "slow_format", lambda device, asked: lacking)
    assert load(build_checkpoint(tmp_path, "llama", torch.bfloat16)) == torch.float16
    assert "this is slow" in caplog.messages


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_computes_in_fp16(halves: Path) -> None:
    assert load(halves, device="cuda:0") == torch.float16


def test_an_engine_has_as_many_threads_or_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "available_cpus", lambda: 3)
    assert threads_of(BuiltInSettings(model_path="m")) == 3
    assert threads_of(BuiltInSettings(model_path="m", threads=7)) == 7
