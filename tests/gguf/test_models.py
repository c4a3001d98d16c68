"""GGUF files as checkpoints: configuration, weights and refusals.

The files are written with gguf-py's own table of names; logits have to equal those of the model that was written.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from djl_python.core.errors import ConfigError, ModelLoadError
from djl_python.engine.checkpoints.directory import check_checkpoint
from djl_python.engine.checkpoints.loading import load_model
from djl_python.engine.checkpoints.stored.gguf_checkpoint import GgufCheckpoint
from djl_python.engine.settings import BuiltInSettings
from djl_python.gguf import GgufError, described_by, vocabulary
from djl_python.gguf.describing import describe
from djl_python.gguf.shards import read_model
from djl_python.gguf.vocabulary import Vocabulary
from djl_python.gguf.weights import weights_of
from djl_python.sources import local_path
from djl_python.text.tokens.tokenizer import Tokenizer
from tests.gguf.models import KINDS, WORDS, add_vocabulary, permuted, random_model, write_model

_IDS = [1, 5, 6, 7, 9, 12, 3, 4, 20, 21, 22, 8, 9, 10]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model(torch.tensor([_IDS])).logits
    return output


def loaded(path: Path, **settings: Any) -> Any:
    settings = {"dtype": "fp32", "device": "cpu", "threads": 1, **settings}
    return load_model(BuiltInSettings(model_path=str(path), **settings), lambda what, done, total: None)


class TestArchitectures:
    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.parametrize("kind", KINDS)
    def test_logits_are_those_of_the_model_that_was_written(self, tmp_path: Path, kind: str) -> None:
        original = random_model(kind)
        write_model(original, kind, tmp_path / "model.gguf")
        path = local_path("model.gguf", "", tmp_path)
        check_checkpoint(path, False)
        model = loaded(path).model
        for each in (original, model):
            each.set_attn_implementation("eager")
        torch.testing.assert_close(logits(model), logits(original), rtol=0, atol=1e-5)

    def test_quantized_weights_are_what_gguf_py_makes_of_them(self, tmp_path: Path) -> None:
        original = random_model("llama")
        write_model(original, "llama", tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q8_0)
        path = local_path("model.gguf", "", tmp_path)
        model = loaded(path, kernels="torch").model
        for name, heads in (("q_proj", 4), ("k_proj", 2)):
            weight = original.model.layers[1].self_attn.get_submodule(name).weight.detach()
            stored = gguf.quantize(permuted(weight, heads).numpy(), gguf.GGMLQuantizationType.Q8_0)
            back = torch.from_numpy(gguf.dequantize(stored, gguf.GGMLQuantizationType.Q8_0))
            made = model.model.layers[1].self_attn.get_submodule(name).weight.detach()
            assert torch.equal(permuted(made, heads), back)

    def test_half_precision_is_loaded_as_it_was_asked_for(self, tmp_path: Path) -> None:
        write_model(random_model("qwen2"), "qwen2", tmp_path / "model.gguf", gguf.GGMLQuantizationType.BF16)
        path = local_path("model.gguf", "", tmp_path)
        assert json.loads((path / "config.json").read_text())["dtype"] == "bfloat16"
        checkpoint = GgufCheckpoint.of(path, as_codes=False)
        assert checkpoint is not None
        state = checkpoint.state(torch.bfloat16)
        assert state["model.layers.0.mlp.up_proj.weight"][...].dtype == torch.bfloat16
        assert state["model.norm.weight"][...].dtype == torch.float32

    def test_transformers_own_reader_finds_the_same(self, tmp_path: Path) -> None:
        write_model(random_model("qwen2"), "qwen2", tmp_path / "model.gguf")
        path = local_path("model.gguf", "", tmp_path)
        other = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path,
            gguf_file="model.gguf",
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )
        torch.testing.assert_close(logits(loaded(path).model), logits(other), rtol=0, atol=1e-5)


class TestDescription:
    def test_a_described_file_is_a_checkpoint(self, tmp_path: Path) -> None:
        write_model(random_model("llama"), "llama", tmp_path / "model.gguf")
        path = local_path("model.gguf", "", tmp_path)
        model = loaded(path)
        assert (model.context, model.eos_ids, model.vocabulary) == (512, {2}, len(WORDS))
        tokenizer = Tokenizer.load(path)
        assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

    def test_another_file_in_its_place_is_described_anew(self, tmp_path: Path) -> None:
        write_model(random_model("llama"), "llama", tmp_path / "model.gguf")
        first = local_path("model.gguf", "", tmp_path)
        assert local_path("model.gguf", "", tmp_path) == first
        write_model(random_model("qwen2"), "qwen2", tmp_path / "model.gguf")
        second = local_path("model.gguf", "", tmp_path)
        assert json.loads((second / "config.json").read_text())["model_type"] == "qwen2"

    def test_weights_that_are_gone_are_an_error(self, tmp_path: Path) -> None:
        write_model(random_model("llama"), "llama", tmp_path / "model.gguf")
        path = local_path("model.gguf", "", tmp_path)
        (tmp_path / "model.gguf").unlink()
        with pytest.raises(GgufError, match=r"model.gguf is missing"):
            loaded(path)

    def test_recommended_sampling_and_templates(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"

        def more(writer: gguf.GGUFWriter) -> None:
            writer.add_float32("general.sampling.temp", 0.7)
            writer.add_int32("general.sampling.top_k", 20)
            writer.add_chat_template("{{ messages }}")
            writer.add_string("tokenizer.chat_template.tool_use", "{{ tools }}")

        minimal(path, more)
        (tmp_path / "made").mkdir()
        describe(path, tmp_path / "made")
        generation = json.loads((tmp_path / "made" / "generation_config.json").read_text())
        assert (generation["temperature"], generation["top_k"], generation["do_sample"]) == (0.7, 20, True)
        assert Tokenizer.load(tmp_path / "made").chat_templates == {
            "default": "{{ messages }}",
            "tool_use": "{{ tools }}",
        }


def minimal(path: Path, change: Any = lambda writer: None, architecture: str = "llama", **options: Any) -> None:
    """A model's file with its metadata and its smallest tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    add_vocabulary(writer)
    writer.add_tensor("token_embd.weight", np.zeros((len(WORDS), 32), np.float32))
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TestRefusals:
    @pytest.mark.parametrize(
        "change, match",
        [
            (lambda writer: writer.add_type("adapter"), "a LoRA adapter .general.type is adapter."),
            (lambda writer: writer.add_type("mmproj"), "a projector of images .mmproj."),
            (lambda writer: writer.add_key_length(8), "keys and values differ in length"),
            (lambda writer: writer.add_rope_dimension_count(8), "positions turn 8 of a head's 16 numbers"),
            (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "rope scaling 'longrope'"),
            (lambda writer: writer.add_head_count_kv([1, 2]), "differs from layer to layer"),
            (lambda writer: writer.add_tensor("blk.0.ssm_a", np.zeros(4, np.float32)), "tensor blk.0.ssm_a is not one"),
            (lambda writer: writer.add_tensor("rope_freqs.weight", np.full(8, 3, np.float32)), "is not Llama 3's"),
            (
                lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(1 << 20, np.float32)),
                "rope_freqs.weight has 1048576 numbers; expected at most 65536",
            ),
            (lambda writer: writer.add_rope_freq_base(math.inf), "rope.freq_base is inf; expected a finite number"),
            (
                lambda writer: writer.add_float32("general.sampling.top_k", math.nan),
                "top_k is nan; expected a finite number",
            ),
        ],
    )
    def test_parts_that_are_not_served_are_named(self, tmp_path: Path, change: Any, match: str) -> None:
        minimal(tmp_path / "model.gguf", change)
        with pytest.raises(ConfigError, match=match):
            local_path("model.gguf", "", tmp_path)

    def test_factors_of_phi_3_come_in_pairs(self, tmp_path: Path) -> None:
        def change(writer: gguf.GGUFWriter) -> None:
            writer.add_tensor("rope_factors_long.weight", np.ones(8, np.float32))

        minimal(tmp_path / "model.gguf", change, architecture="phi3")
        with pytest.raises(ConfigError, match=r"there is no tensor rope_factors_short.weight"):
            local_path("model.gguf", "", tmp_path)

    def test_tokens_whose_cuts_take_too_long_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        squares = sum(len(word) ** 2 for word in set(WORDS))
        minimal(tmp_path / "model.gguf")
        model = read_model(tmp_path / "model.gguf")
        monkeypatch.setattr(vocabulary, "MOST_SQUARES", squares)
        assert Vocabulary(model).tokenizer()["model"]
        monkeypatch.setattr(vocabulary, "MOST_SQUARES", squares - 1)
        with pytest.raises(GgufError, match=f"squares of the tokens' lengths are {squares} together"):
            Vocabulary(model).tokenizer()

    def test_other_architectures_are_named_with_those_that_are_served(self, tmp_path: Path) -> None:
        minimal(tmp_path / "model.gguf", architecture="mamba")
        with pytest.raises(
            ConfigError, match=r"architecture 'mamba' is not served from GGUF files.* expected one of llama"
        ):
            local_path("model.gguf", "", tmp_path)

    def test_types_that_are_not_read_are_named(self, tmp_path: Path) -> None:
        codes = np.zeros((32, 66), np.uint8)
        kind = gguf.GGMLQuantizationType.IQ2_XXS
        minimal(tmp_path / "a.gguf", lambda writer: writer.add_tensor("blk.0.attn_q.weight", codes, raw_dtype=kind))
        with pytest.raises(ConfigError, match=r"tensor blk.0.attn_q.weight is of type IQ2_XXS"):
            local_path("a.gguf", "", tmp_path)

    def test_a_model_without_some_weights_is_not_loaded(self, tmp_path: Path) -> None:
        minimal(tmp_path / "model.gguf")
        with pytest.raises(ModelLoadError, match=r"without .* of the weights that LlamaForCausalLM needs"):
            loaded(local_path("model.gguf", "", tmp_path))

    def test_damaged_metadata_is_an_error_of_the_file(self, tmp_path: Path) -> None:
        """Seeded: one byte of a model's metadata is another one."""
        write_model(random_model("llama 3"), "llama 3", tmp_path / "whole.gguf")
        data, rng = (tmp_path / "whole.gguf").read_bytes(), random.Random(57)
        header = data.index(b"token_embd.weight")
        path, made, refusals = tmp_path / "damaged.gguf", tmp_path / "made", 0
        made.mkdir()
        for _ in range(300):
            changed = bytearray(data)
            changed[rng.randrange(24, header)] = rng.randrange(256)
            path.write_bytes(changed)
            try:
                describe(path, made)
            except GgufError:
                refusals += 1
        assert 30 < refusals < 300


class TestDirectories:
    def test_a_directory_with_one_file(self, tmp_path: Path) -> None:
        minimal(tmp_path / "model.gguf")
        for named in ("", str(tmp_path), "model.gguf"):
            path = local_path(named, "", tmp_path)
            assert json.loads((path / "config.json").read_text())["model_type"] == "llama"

    def test_several_models_are_named(self, tmp_path: Path) -> None:
        minimal(tmp_path / "a.gguf")
        minimal(tmp_path / "b.gguf")
        with pytest.raises(
            ConfigError, match=r"2 models in GGUF files: a.gguf, b.gguf; expected one, or option.model_id"
        ):
            local_path("", "", tmp_path)

    def test_a_projector_beside_the_model_is_named(self, tmp_path: Path) -> None:
        minimal(tmp_path / "a.gguf")
        minimal(tmp_path / "mmproj-a.gguf")
        with pytest.raises(ConfigError, match=r"mmproj-a.gguf is for images.*option.model_id=a.gguf serves"):
            local_path("", "", tmp_path)
        local_path("a.gguf", "", tmp_path)

    def test_a_checkpoint_beside_it_is_what_is_served(self, tmp_path: Path) -> None:
        minimal(tmp_path / "a.gguf")
        (tmp_path / "config.json").write_text("{}")
        assert local_path("", "", tmp_path) == tmp_path


def test_all_experts_have_their_weights(tmp_path: Path) -> None:
    original = random_model("qwen3moe")
    write_model(original, "qwen3moe", tmp_path / "model.gguf")
    weights = weights_of(read_model(tmp_path / "model.gguf"))
    stacked = original.model.layers[1].mlp.experts.down_proj.detach().numpy()
    for expert in range(4):
        made = weights[f"model.layers.1.mlp.experts.{expert}.down_proj.weight"].dense()
        np.testing.assert_array_equal(made, stacked[expert])


def test_phi_3s_tokens_take_the_space_after_them_along(tmp_path: Path) -> None:
    """Its file does not say so; llama.cpp knows it by the model's name."""
    minimal(tmp_path / "other.gguf", lambda writer: writer.add_name("Own"))
    minimal(tmp_path / "phi.gguf", lambda writer: writer.add_name("Phi-3 Mini"))
    rstripped = {}
    for name in ("other", "phi"):
        added = json.loads((local_path(f"{name}.gguf", "", tmp_path) / "tokenizer.json").read_text())["added_tokens"]
        rstripped[name] = [token["content"] for token in added if token["rstrip"]]
    assert rstripped == {"other": [], "phi": ["</s>"]}


def test_a_description_of_nothing_is_refused(tmp_path: Path) -> None:
    for content in ("[1]", "{}", "{"):
        (tmp_path / "gguf.json").write_text(content)
        with pytest.raises(GgufError, match=r"gguf\.json: (expected an object|can't be read)"):
            described_by(tmp_path)


def test_a_file_that_does_not_name_its_pre_tokenizer_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0]["tokenizer.ggml.model"].value = "gpt2"
        writer.add_token_merges(["a b", "c d", "ab cd"])

    minimal(tmp_path / "model.gguf", change)
    local_path("model.gguf", "", tmp_path)
    assert "tokenizer.ggml.pre is missing" in caplog.text


@pytest.mark.parametrize("merge", ["a", "a zz", "zz a", " a b"])
def test_merges_of_no_tokens_are_named(tmp_path: Path, merge: str) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0]["tokenizer.ggml.model"].value = "gpt2"
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([merge])

    minimal(tmp_path / "model.gguf", change)
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.merges: "):
        local_path("model.gguf", "", tmp_path)


def test_unknown_pre_tokenizers_are_named(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0]["tokenizer.ggml.model"].value = "gpt2"
        writer.add_tokenizer_pre("qwen9")
        writer.add_token_merges(["a b"])

    minimal(tmp_path / "model.gguf", change)
    with pytest.raises(ConfigError, match=r"tokenizer\.ggml\.pre is 'qwen9'; expected one of default, .*qwen2"):
        local_path("model.gguf", "", tmp_path)
