"""What a checkpoint's files lack, held against what transformers makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig
from transformers.models.auto import modeling_auto

from djl_python.core.errors import ModelLoadError
from djl_python.engine.checkpoints.directory import (
    check_checkpoint,
    context_fault,
    contexts,
    longest_of,
    method_of,
    quantization_fault,
    quantization_remark,
)
from djl_python.engine.checkpoints.loading import load_model
from djl_python.engine.settings import BuiltInSettings
from tests.sketches import LLAMA, write_sketch


def refusals(path: Path, *, trust: bool = False) -> list[str]:
    with pytest.raises(ModelLoadError) as caught:
        check_checkpoint(path, trust)
    return caught.value.message.splitlines()


def with_config(**values: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        (path / "config.json").write_text(json.dumps(values))

    return write


def truncate(path: Path) -> None:
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-1])


def empty(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"")


def pointer(path: Path) -> None:
    (path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def shards(path: Path) -> None:
    (path / "model.safetensors").rename(path / "model-1-of-3.safetensors")
    named = {"a": "model-1-of-3.safetensors", "b": "model-2-of-3.safetensors", "c": "model-3-of-3.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))


def no_shards(path: Path) -> None:
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "there is no config.json"),
        (lambda path: (path / "config.json").write_text("{"), "config.json is not valid JSON"),
        (with_config(model_type="lama"), "model_type 'lama' is not a language model .*; did you mean llama\\?"),
        (with_config(model_type="vit"), "model_type 'vit' is not a language model that transformers 5"),
        (with_config(architectures=["LlamaForCausalLM"]), "there is no model_type"),
        (with_config(model_type="own", auto_map={"AutoConfig": "x.Y"}), "expected option.trust_remote_code=true"),
        (lambda path: (path / "model.safetensors").unlink(), "there are no weights: expected model.safetensors"),
        (truncate, "model.safetensors: not a complete safetensors file"),
        (empty, "model.safetensors: the file is empty"),
        (pointer, "model.safetensors: a pointer of Git LFS"),
        (shards, "index.json: names model-2-of-3.safetensors and 1 more, of 3 files"),
        (no_shards, "index.json: expected weight_map"),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_a_line(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    path = write_sketch(tmp_path)
    damage(path)
    (line,) = refusals(path)
    assert re.search(message, line)
    with pytest.raises(Exception):  # noqa: B017 (whatever transformers raises)
        load_model(BuiltInSettings(model_path=str(path)), lambda what, done, total: None)


def test_all_faults_are_told(tmp_path: Path) -> None:
    shards(write_sketch(tmp_path, {"model_type": "lama"}))
    (tmp_path / "model-1-of-3.safetensors").write_bytes(b"")
    assert len(refusals(tmp_path)) == 3


def test_a_complete_checkpoint_is_accepted(tmp_path: Path) -> None:
    check_checkpoint(write_sketch(tmp_path / "a"), False)
    check_checkpoint(write_sketch(tmp_path / "b", {"model_type": "own", "auto_map": {"AutoConfig": "x.Y"}}), True)
    path = write_sketch(tmp_path / "c", LLAMA)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    check_checkpoint(path, False)


def test_the_model_types_are_those_of_transformers(tmp_path: Path) -> None:
    tables = (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    write_sketch(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    for kind in {kind for table in tables for kind in table}:
        with_config(model_type=kind)(tmp_path)
        check_checkpoint(tmp_path, False)


def test_a_model_with_images_needs_its_processors_file(tmp_path: Path) -> None:
    write_sketch(tmp_path)
    with_config(model_type="qwen2_vl")(tmp_path)
    with pytest.raises(ModelLoadError, match=r"no preprocessor_config\.json: model_type 'qwen2_vl' takes images"):
        check_checkpoint(tmp_path, False)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({}, (256, 256)),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, (1024, 1024)),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, (256, 256)),
        ({"rope_type": "linear", "factor": 4.0}, (256, 1024)),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, (256, 256)),
    ],
)
def test_the_context_follows_from_the_rope_parameters(rope: dict[str, Any], expected: tuple[int, int]) -> None:
    config = LlamaConfig(max_position_embeddings=256)
    config.rope_parameters = rope
    assert contexts(config) == expected
    assert longest_of({"max_position_embeddings": 256, "rope_parameters": rope}) in (expected[1], None)


def test_the_longest_text_is_that_of_the_file_or_unknown() -> None:
    assert longest_of({"max_position_embeddings": 256}) == 256
    assert longest_of({"text_config": {"n_positions": 64}}) == 64
    assert longest_of({"max_position_embeddings": 256, "rope_scaling": {"type": "dynamic", "factor": 2.0}}) is None
    assert longest_of({}) is None
    assert context_fault(257, 256) == "option.max_model_len=257 is more than the checkpoint's context of 256"
    assert context_fault(256, 256) == context_fault(None, 256) == ""


@pytest.mark.parametrize(
    ("wanted", "stored", "fault", "remark"),
    [
        ("none", {"quant_method": "awq"}, "", ""),
        ("awq", {"quant_method": "awq"}, "", ""),
        ("int8", None, "", ""),
        ("awq", None, "", "option.quantize=awq has no effect: the checkpoint is not quantized, and "),
        (
            "awq",
            {"quant_method": "gptq"},
            "",
            "option.quantize=awq has no effect: the checkpoint is quantized with gptq",
        ),
        ("int4", {"quant_method": "gptq"}, "option.quantize=int4: the checkpoint is quantized already, with gptq", ""),
    ],
)
def test_a_checkpoint_that_is_not_quantized_as_it_is_said_to_be(
    wanted: str, stored: dict[str, Any] | None, fault: str, remark: str
) -> None:
    method = method_of(stored)
    for text, told in ((quantization_fault(wanted, method), fault), (quantization_remark(wanted, method), remark)):
        assert text.startswith(told) and bool(text) == bool(told)
