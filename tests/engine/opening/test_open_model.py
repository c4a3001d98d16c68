"""How a loaded model is run: by what, what happens where that computes something else, and how it is closed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, CpmAntConfig, LlamaConfig

from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.checkpoints.quantization import quantized
from djl_python.engine.native import thread_pool
from djl_python.engine.native.library import KernelsUnavailableError, library
from djl_python.engine.native.opening import native_program
from djl_python.engine.native.program.runner import NativeModelRunner
from djl_python.engine.opening.open_model import open_model
from djl_python.engine.reading.recipe.primitives import NotUnderstoodError
from djl_python.engine.runner.opened_model import OpenedModel
from djl_python.engine.settings import BuiltInSettings
from djl_python.engine.torch_backend.paged_runner import PagedModelRunner
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch, run_to_end
from tests.kernels import kernels_or_skip
from tests.threads import come_down_to, threads

WIDTH = 128


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bf16 checkpoint whose head is its embedding, of more than a few pages."""
    path = tmp_path_factory.mktemp("tied")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=WIDTH,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(path)
    return path


def opened(path: Path, **settings: Any) -> OpenedModel:
    defaults: dict[str, Any] = {"max_batch_size": 2, "kv_cache_memory_mb": 16, "threads": 1}
    return open_model(BuiltInSettings(model_path=str(path), **{**defaults, **settings}), lambda what, done, total: None)


def test_an_embedding_that_is_the_head_stays_rounded_like_it(tied: Path) -> None:
    """Its memory was the mapped file's, whose pages are given back while the model is tried."""
    weight = load_file(next(tied.glob("*.safetensors")))["model.embed_tokens.weight"]
    runner = opened(tied, quantize="int8", kernels="torch")
    embedding = runner.loaded.model.get_input_embeddings().weight
    assert torch.equal(embedding, quantized(weight, "int8").values(WIDTH).bfloat16())


def nothing_right(self: Any, chunks: list[SequenceChunk]) -> Tensor:
    vocabulary = self.vocabulary if isinstance(self, NativeModelRunner) else 2048
    return torch.zeros(sum(chunk.length for chunk in chunks), vocabulary)


def not_at_all(self: Any, chunks: list[SequenceChunk]) -> Tensor:
    raise TypeError("forward() got an unexpected keyword argument")


@pytest.mark.parametrize("run", [nothing_right, not_at_all])
@pytest.mark.parametrize(
    ("kernels", "runner", "instead", "refusal"),
    [
        ("auto", NativeModelRunner, "torch-paged (native products)", "its logits in fp32 are not|TypeError: forward"),
        ("torch", PagedModelRunner, "transformers-cache", ""),
    ],
)
def test_a_runner_that_fails_its_trial_is_not_used(
    kernels: str, runner: type, instead: str, refusal: str, run: Any, tied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runner is NativeModelRunner:
        kernels_or_skip(library)
    monkeypatch.setattr(runner, "run", run)
    model = opened(tied, kernels=kernels)
    assert model.info.runner == instead
    assert re.match(refusal, model.info.refusal) if refusal else not model.info.refusal


@pytest.mark.parametrize("run", [nothing_right, not_at_all])
def test_kernels_that_were_asked_for_and_fail_their_trial_are_an_error(
    run: Any, tied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels_or_skip(library)
    monkeypatch.setattr(NativeModelRunner, "run", run)
    with pytest.raises(ModelLoadError, match=r"option.kernels=native: (its logits in fp32 are not the|TypeError: fo)"):
        opened(tied, kernels="native")


def test_a_model_that_fails_with_its_cache_reads_whole_sequences(tmp_path: Path) -> None:
    """CPM-Ant adds positions of a prompt's length to the scores of more tokens."""
    torch.manual_seed(3)
    config = CpmAntConfig(
        **{"vocab_size": 320, "hidden_size": 64, "num_attention_heads": 4, "dim_head": 16, "dim_ff": 96},
        **{"num_hidden_layers": 2, "prompt_types": 4, "prompt_length": 4, "segment_types": 4},
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    batch = open_batch(tmp_path)
    tokens = list(range(2, 20))
    batch.add(SequenceRequest(tokens, SamplingParams(max_new_tokens=4, ignore_eos=True), id=0))
    generated = [event.token_id for event in run_to_end(batch)[0]]
    batch.close()
    with torch.inference_mode():
        for _ in range(4):
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
            tokens = [*tokens, int(logits[0, -1].argmax())]
    assert generated == tokens[-4:]


def refuse(*_: Any) -> None:
    raise NotUnderstoodError("a model of another kind")


@pytest.mark.parametrize(
    ("architecture", "kernels", "runner"),
    [
        ("llama", "auto", "native"),
        ("llama", "torch", "torch-paged"),
        ("bloom", "torch", "transformers-cache"),
    ],
)
def test_an_opened_model_reports_its_runner_and_format(
    architecture: str, kernels: str, runner: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a word of kernels, where it is what was asked for."""
    if runner == "native":
        kernels_or_skip(library)
    info = open_batch(build_checkpoint(tmp_path, architecture), dtype="bf16", kernels=kernels, quantize="int8").info
    assert (info.runner, info.dtype, info.quantize, info.device) == (runner, "bfloat16", "int8", "cpu")
    assert info.weight_bytes > 0 and info.cache_bytes > 0
    assert info.warnings == ()
    assert "kernels" not in caplog.text


@pytest.mark.parametrize("architecture", ["llama", "bloom"])
def test_a_model_that_the_kernels_refuse_is_warned_of(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels_or_skip(library)
    monkeypatch.setattr(native_program, "read_recipe", refuse)
    path = build_checkpoint(tmp_path, architecture)
    info = open_batch(path, quantize="int8").info
    runner = "torch-paged" if architecture == "llama" else "transformers-cache"
    assert (info.runner, info.refusal) == (f"{runner} (native products)", "a model of another kind")
    (warning,) = info.warnings
    assert warning.startswith(
        f"not on the native kernels: a model of another kind. It runs on {runner} (native products)"
    )
    assert warning.endswith("Its int8 weights are the same there.")
    assert f"ForCausalLM: {warning}" in caplog.text


@pytest.mark.parametrize("length", [16, 20, 64])
def test_a_context_shorter_than_the_trials_text_does_not_keep_a_model_from_the_kernels(
    length: int, tmp_path: Path
) -> None:
    kernels_or_skip(library)
    batch = open_batch(build_checkpoint(tmp_path, "llama"), max_model_len=length)
    assert (batch.info.runner, batch.max_model_len) == ("native", length)
    batch.close()


def test_a_setting_that_keeps_a_model_from_the_kernels_is_warned_of(tmp_path: Path) -> None:
    kernels_or_skip(library)
    info = open_batch(build_checkpoint(tmp_path, "llama"), block_size=4).info
    assert info.refusal.startswith("option.block_size=4 is not a multiple of ")


def test_where_there_are_no_kernels_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the model is: it would not run on kernels that do not exist."""

    def missing() -> None:
        raise KernelsUnavailableError("there is no C++ compiler")

    monkeypatch.setattr(native_program, "library", missing)
    monkeypatch.setattr(thread_pool, "library", missing)
    monkeypatch.setattr(native_program, "read_recipe", refuse)
    with caplog.at_level("INFO"):
        info = open_batch(build_checkpoint(tmp_path, "llama")).info
    assert (info.runner, info.warnings) == ("torch-paged", ())
    assert "no native kernels: there is no C++ compiler; the model runs on torch" in caplog.text


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_weights_that_stay_as_they_are_are_told(
    kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """torch has no kernels for rounded weights of several experts."""
    monkeypatch.setattr(native_program, "read_recipe", refuse)
    info = open_batch(build_checkpoint(tmp_path, "qwen3_moe"), kernels=kernels, quantize="int8").info
    assert "of the numbers in matrices stay in float32 (Qwen3MoeExperts." in info.unrounded
    assert info.warnings[-1] == f"not all weights are int8: {info.unrounded}"
    assert "the same there" not in caplog.text and info.warnings[-1] in caplog.text


def test_bits_that_a_width_is_too_odd_for_are_told(tmp_path: Path) -> None:
    """torch's 4-bit kernel takes 16 columns at a time."""
    config = LlamaConfig(
        **{"vocab_size": 320, "hidden_size": 64, "intermediate_size": 120, "num_hidden_layers": 1},
        **{"num_attention_heads": 4, "num_key_value_heads": 4},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    info = open_batch(tmp_path, kernels="torch", quantize="int4").info
    assert info.unrounded == "2 linears have 8 bits, because torch's 4-bit kernel does not take their widths"


@pytest.mark.parametrize(
    ("architecture", "how", "settings"),
    [
        ("llama", "native kernels", {}),
        ("qwen3_5", "native kernels", {}),
        ("llama", "native products", {}),
        ("bloom", "transformers' own cache", {}),
        ("llama", "native kernels", {"speculative": "draft"}),
        ("llama", "native products", {"speculative": "draft"}),
    ],
)
def test_threads_end_with_the_batch_that_they_are_for(
    architecture: str, how: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels_or_skip(library)
    path = build_checkpoint(tmp_path, architecture)
    if how != "native kernels":
        monkeypatch.setattr(native_program, "read_recipe", refuse)

    def open_and_close() -> None:
        batch = open_batch(path, threads=3, draft_model_path=str(path), **settings)
        assert how in batch.description
        batch.add(SequenceRequest(list(range(2, 30)), SamplingParams(max_new_tokens=4, ignore_eos=True), id=0))
        run_to_end(batch)
        during = threads()
        batch.close()
        assert come_down_to(during - 1)

    open_and_close()
    libraries = threads()  # they have their own from now on
    open_and_close()
    assert come_down_to(libraries)
