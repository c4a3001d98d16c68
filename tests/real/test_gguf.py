"""Trained weights and real vocabularies from GGUF files: the same tensors, ids and texts as from other sources."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from safetensors import safe_open

from djl_python.engine.checkpoints.stored.gguf_checkpoint import GgufCheckpoint
from djl_python.gguf.shards import read_model
from djl_python.gguf.summary import summary
from djl_python.gguf.vocabulary import Vocabulary
from djl_python.sources import local_path
from djl_python.testing import running_server
from djl_python.text.tokens.tokenizer import Tokenizer
from tests.gguf.k_quantizing import quantize
from tests.real import padded
from tests.real.conftest import opened
from tests.real.gguf_files import model, vocabulary_files
from tests.real.padded import Floats
from tests.real.perplexity import engine_logprobs, of_engine

_BETWEEN_TEXTS = "\n__ggml_vocab_test__\n"
#: llama.cpp brings texts and ids of these, whose kinds of tokenizers are read here.
_NAMES = (
    *(
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "mpt",
        "phi-3",
        "qwen2",
        "qwen35",
    ),
    *("refact", "starcoder"),
)


@pytest.fixture(scope="session")
def files() -> Path:
    if not (path := vocabulary_files()).is_dir():
        pytest.skip("they have not been fetched: `make test` and `python -m tests.real.gguf_files` do, and say why not")
    return path


@pytest.fixture(scope="session")
def weights() -> Path:
    if not (path := model()).is_file():
        pytest.skip("it has not been fetched: `make test` and `python -m tests.real.gguf_files` do, and say why not")
    return path


@pytest.fixture(scope="session")
def described(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return local_path(str(weights), "", Path(), tmp_path_factory.mktemp("cache"))


def texts_of(files: Path, name: str) -> list[str]:
    return (files / f"ggml-vocab-{name}.gguf.inp").read_text("utf-8").split(_BETWEEN_TEXTS)


@pytest.mark.parametrize("name", _NAMES)
def test_ids_are_those_that_llama_cpp_expects(files: Path, name: str) -> None:
    made = Vocabulary(read_model(files / f"ggml-vocab-{name}.gguf")).tokenizer()
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(made))
    lines = (files / f"ggml-vocab-{name}.gguf.out").read_text().splitlines()
    texts = texts_of(files, name)
    assert len(lines) > 40
    for text, line in zip(texts, lines, strict=False):
        assert tokenizer.encode(text, add_special_tokens=False).ids == [int(each) for each in line.split()], text


def test_the_tokenizer_is_transformers_own(described: Path, smol: Path, files: Path) -> None:
    """But for numbers: transformers' reading of the file drops the rule that each numeral is a word.

    The vocabulary `starcoder`, above, has the same rule, and llama.cpp's ids for the same text.
    """
    own, other = Tokenizer.load(described), tokenizers.Tokenizer.from_file(str(smol / "tokenizer.json"))
    texts = (*texts_of(files, "gpt-2"), "<|im_start|>user\nHi<|im_end|>\n")
    assert [text for text in texts if own.encode(text) != other.encode(text).ids] == ["ied 4 ½ months"]
    for text in texts:
        assert own.decode(own.encode(text), skip_special_tokens=False) == text
    assert own.chat_templates["default"] == (smol / "chat_template.jinja").read_text("utf-8")
    assert own.special_tokens["eos_token"] == json.loads((smol / "tokenizer_config.json").read_text())["eos_token"]


def test_weights_are_what_transformers_unpacks(described: Path, smol: Path) -> None:
    checkpoint = GgufCheckpoint.of(described, as_codes=False)
    assert checkpoint is not None
    state = checkpoint.state(torch.bfloat16)
    with safe_open(smol / "model.safetensors", framework="pt") as other:
        assert set(other.keys()) == set(state)
        for name in other.keys():  # noqa: SIM118 (it can't be iterated over)
            assert torch.equal(state[name][...].to(torch.bfloat16), other.get_tensor(name)), name


@pytest.mark.slow
def test_perplexity_is_that_of_the_files_numbers(described: Path, texts: list[list[int]]) -> None:
    """The kernels multiply with the file's codes; transformers, with the same numbers in fp32, has 11.871."""
    with opened(described, dtype="bf16", threads=None) as batch:
        assert (batch.info.runner, batch.info.refusal) == ("native", "")
        assert of_engine(batch, texts) == pytest.approx(11.871, rel=0.005)


@pytest.mark.slow
def test_a_file_is_served(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is llama.cpp's from the same file. With other questions, the best two tokens are as good as equal."""
    monkeypatch.setenv("DJL_CACHE_DIR", str(tmp_path))
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Who wrote Hamlet?"}],
        "max_tokens": 20,
        "temperature": 0,
    }
    with running_server("-m", str(weights), start_timeout_s=300) as server:
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
    assert answer["model"] == "SmolLM2_135M_Instruct_Q4_1"
    said = "The Bard's own son, William Shakespeare, penned the iconic play"
    assert answer["choices"][0]["message"]["content"].startswith(said)
    assert answer["choices"][0]["finish_reason"] == "length"


_K_TYPES = {name: gguf.GGMLQuantizationType[name] for name in "Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS".split()}


def test_k_types_of_trained_weights_multiply_as_their_numbers_do(weights: Path, tmp_path: Path) -> None:
    """Six layers, one of each type, and the table of tokens: whole blocks of 256, as large models have."""
    types = list(_K_TYPES.values())

    def rounded(name: str, numbers: Floats) -> tuple[np.ndarray[Any, Any], gguf.GGMLQuantizationType]:
        of_type = types[int(name.split(".")[1])] if name.startswith("blk.") else _K_TYPES["Q6_K"]
        return quantize(numbers, of_type), of_type

    padded.write(tmp_path / "model.gguf", len(types), rounded)
    path = local_path(str(tmp_path / "model.gguf"), "", Path(), tmp_path / "cache")
    assert dict(summary(tmp_path / "model.gguf"))["becomes option.dtype"] == "nothing"
    ids = Tokenizer.load(path).encode("Whoever keeps bees learns to look at the weather, and at what is in flower.")
    made = []
    for kernels in ("native", "torch"):
        with opened(path, dtype="fp32", kernels=kernels, kv_blocks=8, max_model_len=64) as batch:
            assert (batch.info.runner == "native") == (kernels == "native"), batch.info.refusal
            made.append(torch.tensor(engine_logprobs(batch, [ids])))
    assert (made[0] - made[1]).abs().mean() < 0.02 * made[1].std()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_perplexity_of_a_padded_model_is_that_of_its_numbers(
    weights: Path, tmp_path: Path, texts: list[list[int]], name: str
) -> None:
    """As Q4_K_M mixes them: values and the table of tokens are Q6_K.

    Rounding rows to 8 bits in blocks of 32 costs 0.6 to 0.8 %; in blocks of 256, as llama.cpp does, 1.9 %.
    """

    def rounded(tensor: str, numbers: Floats) -> tuple[np.ndarray[Any, Any], gguf.GGMLQuantizationType]:
        of_type = _K_TYPES["Q6_K" if "attn_v" in tensor or "token_embd" in tensor else name]
        return quantize(numbers, of_type), of_type

    padded.write(tmp_path / "model.gguf", None, rounded)
    path = local_path(str(tmp_path / "model.gguf"), "", Path(), tmp_path / "cache")
    made = []
    for settings in ({"dtype": "bf16", "kernels": "native"}, {"dtype": "fp32", "kernels": "torch"}):
        with opened(path, **settings) as batch:
            made.append(of_engine(batch, texts[1::4]))
    assert made[0] == pytest.approx(made[1], rel=0.012)
