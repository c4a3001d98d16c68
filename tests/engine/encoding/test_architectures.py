"""Each architecture with random weights: its numbers equal transformers', whatever a text is batched with."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from djl_python.core.errors import ModelLoadError
from djl_python.core.text_tasks import Granularity
from djl_python.engine.encoding.settings import Head
from djl_python.ipc.encodings import EncodeRequest, EncoderInput
from tests.encoders import (
    CONFIGURATIONS,
    SINKS,
    VOCABULARY,
    numbers_of,
    open_here,
    run_to_end,
    write_encoder,
    write_word_tokenizer,
)

#: Tokens of the texts, which are batched with and without padding.
LENGTHS = (3, 17, 16, 16, 1, 40, 18)
#: Why native kernels do not run an architecture.
REFUSED = {
    "mpnet": "its attention is inside of its own modules",
    "deberta": "its attention is inside of its own modules",
    "deberta-v2": "its attention is inside of its own modules",
    "electra": "the embedding is narrower than the layers",
}
NATIVE = [kind for kind in CONFIGURATIONS if kind not in REFUSED]


def texts(seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.choices(range(4, VOCABULARY), k=length) for length in LENGTHS]


@torch.inference_mode()
def hidden_states(model: Any, ids: list[int]) -> Any:
    cache = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    return model(input_ids=torch.tensor([ids]), **cache).last_hidden_state[0]


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_hidden_states_and_pooled_ones_equal_transformers(tmp_path: Path, kind: str) -> None:
    model = write_encoder(tmp_path, kind)
    engine = open_here(tmp_path)
    assert (engine.info.runner, engine.info.refusal) == (
        ("torch", REFUSED[kind]) if kind in REFUSED else ("native", "")
    )
    inputs = texts()
    engine.add(EncodeRequest([EncoderInput(ids, granularity=Granularity.TOKENS) for ids in inputs], 1))
    engine.add(EncodeRequest([EncoderInput(ids) for ids in inputs], 2))
    arrays = numbers_of(run_to_end(engine))
    pools_last = kind in ("qwen3", "mistral")
    for index, ids in enumerate(inputs):
        expected = hidden_states(model, ids)
        np.testing.assert_allclose(arrays[1, index], expected.numpy(), atol=2e-5, rtol=1e-5)
        pooled = expected[-1] if pools_last else expected.mean(0)
        np.testing.assert_allclose(arrays[2, index], pooled.numpy(), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_with_sinks_as_trained_models_have_them(tmp_path: Path, kind: str) -> None:
    """Huge hidden states beside small ones: an error in a mask, a norm or a sum shows."""
    model = write_encoder(tmp_path, kind, sinks=True)
    engine = open_here(tmp_path)
    inputs = texts(2)
    engine.add(EncodeRequest([EncoderInput(ids, granularity=Granularity.TOKENS) for ids in inputs], 1))
    arrays = numbers_of(run_to_end(engine))
    for index, ids in enumerate(inputs):
        expected = hidden_states(model, ids).numpy()
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(arrays[1, index], expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("auto_class", ["AutoModel", "AutoModelForTextEncoding"])
@pytest.mark.parametrize("kind", ["T5", "MT5"])
def test_the_encoder_of_t5(tmp_path: Path, kind: str, auto_class: str) -> None:
    """The encoder of a whole checkpoint, and one that is an encoder alone, as sentence-t5's."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes)
    write_word_tokenizer(tmp_path)
    torch.manual_seed(5)
    model = getattr(transformers, auto_class).from_config(config).eval()
    model.save_pretrained(tmp_path)
    engine = open_here(tmp_path)
    inputs = texts(3)
    engine.add(EncodeRequest([EncoderInput(ids) for ids in inputs], 1))
    arrays = numbers_of(run_to_end(engine))
    for index, ids in enumerate(inputs):
        with torch.inference_mode():
            expected = model.encoder(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
        np.testing.assert_allclose(arrays[1, index], expected, atol=2e-5, rtol=1e-5)


def test_code_of_the_checkpoints_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As GTE's: a model type that transformers does not know, whose classes are beside the weights."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "code"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "gte"
    model = write_encoder(path)
    (path / "configuration.py").write_text(
        "from transformers import BertConfig\n\n\nclass NewConfig(BertConfig):\n    model_type = 'new'\n"
    )
    (path / "modeling.py").write_text(
        "from transformers import BertModel\n\nfrom .configuration import NewConfig\n\n\n"
        "class NewModel(BertModel):\n    config_class = NewConfig\n\n"
        "    def forward(self, *arguments, **named):\n        found = super().forward(*arguments, **named)\n"
        "        found.last_hidden_state = found.last_hidden_state * 2\n        return found\n"
    )
    config = json.loads((path / "config.json").read_text())
    names = {"AutoConfig": "configuration.NewConfig", "AutoModel": "modeling.NewModel"}
    config |= {"model_type": "new", "architectures": ["NewModel"], "auto_map": names}
    (path / "config.json").write_text(json.dumps(config))
    engine = open_here(path, trust_remote_code=True)
    inputs = texts(4)
    engine.add(EncodeRequest([EncoderInput(ids) for ids in inputs], 1))
    arrays = numbers_of(run_to_end(engine))
    for index, ids in enumerate(inputs):
        np.testing.assert_allclose(arrays[1, index], 2 * hidden_states(model, ids).mean(0).numpy(), atol=1e-4)


@pytest.mark.parametrize("kind", NATIVE)
def test_native_hidden_states_are_transformers_with_sinks_too_and_do_not_depend_on_the_batch(
    tmp_path: Path, kind: str
) -> None:
    model = write_encoder(tmp_path, kind, sinks=True)
    engine = open_here(tmp_path, kernels="native")
    inputs = [[SINKS[0], *ids[1:]] for ids in texts(2)]
    engine.add(EncodeRequest([EncoderInput(ids, granularity=Granularity.TOKENS) for ids in inputs], 1))
    together = numbers_of(run_to_end(engine))
    for index, ids in enumerate(inputs):
        expected = hidden_states(model, ids).numpy()
        np.testing.assert_allclose(together[1, index], expected, atol=1e-4 * max(1.0, np.abs(expected).max()))
        engine.add(EncodeRequest([EncoderInput(ids, granularity=Granularity.TOKENS)], 2))
        (alone,) = numbers_of(run_to_end(engine)).values()
        np.testing.assert_allclose(alone, together[1, index], atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("settings", [{"dtype": "bf16"}, {"quantize": "int8"}, {"quantize": "int8", "dtype": "bf16"}])
@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_rounded_hidden_states_are_near(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model = write_encoder(tmp_path, kind)
    engine = open_here(tmp_path, kernels="native", **settings)
    assert engine.info.quantize == settings.get("quantize", "none")
    assert engine.info.dtype == ("bfloat16" if "dtype" in settings else "float32")
    ids = texts()[5]
    engine.add(EncodeRequest([EncoderInput(ids, granularity=Granularity.TOKENS)], 1))
    (hidden,) = numbers_of(run_to_end(engine)).values()
    expected = hidden_states(model, ids).numpy()
    apart = np.linalg.norm(hidden - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert 1e-4 < np.median(apart) < 0.2


@pytest.mark.parametrize("auto_class", ["AutoModel", "AutoModelForSequenceClassification"])
def test_weights_whose_code_names_fp32_are_loaded_in_16_bits_too(tmp_path: Path, auto_class: str) -> None:
    model = write_encoder(tmp_path, "deberta", auto_class)
    head = Head.EMBEDDING if auto_class == "AutoModel" else Head.CLASSES
    engine = open_here(tmp_path, head, dtype="bf16")
    assert engine.info.dtype == "bfloat16"
    ids = texts()[5]
    engine.add(EncodeRequest([EncoderInput(ids)], 1))
    (vector,) = numbers_of(run_to_end(engine)).values()
    with torch.inference_mode():
        output = model(torch.tensor([ids]))
    expected = (output.last_hidden_state[0].mean(0) if head is Head.EMBEDDING else output.logits[0]).numpy()
    apart = np.linalg.norm(vector - expected) / np.linalg.norm(expected)
    assert 1e-5 < apart < 0.2


def test_tokens_of_padding_within_a_text_have_no_position(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, "roberta")
    engine = open_here(tmp_path, kernels="native")
    ids = [5, 1, 6, 7, 1, 1, 8]
    engine.add(EncodeRequest([EncoderInput([9, 9]), EncoderInput(ids, granularity=Granularity.TOKENS)], 1))
    expected = hidden_states(model, ids)
    np.testing.assert_allclose(numbers_of(run_to_end(engine))[1, 1], expected.numpy(), atol=2e-5)


def test_the_kernels_are_chosen_by_option(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    assert open_here(tmp_path, kernels="torch").info.runner == "torch"
    write_encoder(tmp_path, "mpnet")
    with pytest.raises(ModelLoadError, match=r"option\.kernels=native: its attention is inside of its own modules"):
        open_here(tmp_path, kernels="native")


def test_torch_rounds_weights_where_the_kernels_do_not_run_a_model(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, "mpnet")
    engine = open_here(tmp_path, quantize="int8")
    assert (engine.info.runner, engine.info.quantize) == ("torch", "int8")
    engine.add(EncodeRequest([EncoderInput(texts()[1], granularity=Granularity.TOKENS)], 1))
    (vector,) = numbers_of(run_to_end(engine)).values()
    expected = hidden_states(model, texts()[1]).numpy()
    assert 1e-4 < np.linalg.norm(vector - expected) / np.linalg.norm(expected) < 0.2


@pytest.mark.parametrize(
    ("kind", "context"), [("bert", 64), ("roberta", 62), ("mpnet", 62), ("modernbert", 64), ("qwen3", 64)]
)
def test_a_text_is_as_long_as_there_are_positions(tmp_path: Path, kind: str, context: int) -> None:
    """RoBERTa's first position is behind the one of padding."""
    model = write_encoder(tmp_path, kind)
    engine = open_here(tmp_path)
    assert engine.max_model_len == context
    longest = random.Random(1).choices(range(4, VOCABULARY), k=context)
    engine.add(EncodeRequest([EncoderInput(longest, granularity=Granularity.TOKENS), EncoderInput([*longest, 5])], 1))
    refused, *made = run_to_end(engine)
    assert (refused.index, refused.error) == (1, f"a text has {context + 1} tokens; expected 1 to {context}")
    (numbers,) = numbers_of(made).values()
    np.testing.assert_allclose(numbers, hidden_states(model, longest).numpy(), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "deberta-v2", "modernbert", "qwen3"])
def test_classifiers_equal_transformers(tmp_path: Path, kind: str) -> None:
    model = write_encoder(tmp_path, kind, "AutoModelForSequenceClassification", num_labels=3)
    engine = open_here(tmp_path, Head.CLASSES)
    assert engine.info.runner == ("torch" if kind in REFUSED else "native")
    inputs = texts(1)
    engine.add(EncodeRequest([EncoderInput(ids) for ids in inputs], 1))
    arrays = numbers_of(run_to_end(engine))
    with torch.inference_mode():
        for index, ids in enumerate(inputs):
            expected = model(input_ids=torch.tensor([ids])).logits[0].numpy()
            np.testing.assert_allclose(arrays[1, index], expected, atol=2e-5, rtol=1e-5)


def test_a_pair_is_told_apart_by_its_types(tmp_path: Path) -> None:
    model = write_encoder(tmp_path, auto_class="AutoModelForSequenceClassification", num_labels=1)
    engine = open_here(tmp_path, Head.CLASSES)
    ids, types = [2, 7, 8, 3, 9, 3], [0, 0, 0, 0, 1, 1]
    engine.add(EncodeRequest([EncoderInput(ids, types), EncoderInput(ids)], 1))
    arrays = numbers_of(run_to_end(engine))
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0].numpy()
    np.testing.assert_allclose(arrays[1, 0], expected, atol=1e-5)
    assert abs(arrays[1, 1] - expected).max() > 1e-3
