"""Checkpoints of real shapes with random weights, for measuring speed where nothing can be downloaded.

    python -m tests.bench.make_models OUT [llama-135m qwen2-0.5b llama32-1b granite-moe-1b]

What such a model says is noise; how long it takes to say it is what the real one takes. Each directory is a complete
checkpoint (bf16 safetensors, fast tokenizer, chat template, generation_config) with a serving.properties, so that
`djl-serving -m OUT/llama-135m` serves it. The same seed gives the same weights.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GraniteMoeConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from tests.bench.perplexity import RANDOM

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PAD_ID, START_ID, END_ID = range(3)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: A tokenizer need not be as large as the embedding matrix it feeds; ids above it are never drawn (see `build`).
TOKENIZER_SIZE = 16_384
MAX_TRAINING_CHARACTERS = 8_000_000


def llama_135m() -> PretrainedConfig:
    """The shape of SmolLM2-135M: 30 layers of 576, 9 heads of which 3 for keys and values."""
    return LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )


def qwen2_half_billion() -> PretrainedConfig:
    """The shape of Qwen2.5-0.5B: 24 layers of 896, 14 heads of which 2 for keys and values, attention bias."""
    return Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
    )


def llama32_1b() -> PretrainedConfig:
    """The shape of Llama 3.2 1B: 16 layers of 2048, 32 heads of which 8 for keys and values."""
    return LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=True,
    )


def granite_moe_1b() -> PretrainedConfig:
    """The shape of Granite 3.1 1B A400M: 24 layers of 1024, each with 32 experts of 512 of which a token takes 8."""
    return GraniteMoeConfig(
        vocab_size=49_152,
        hidden_size=1024,
        intermediate_size=512,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_local_experts=32,
        num_experts_per_tok=8,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        attention_multiplier=1 / 64,
        embedding_multiplier=12.0,
        logits_scaling=6.0,
        residual_multiplier=0.22,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
    )


SHAPES: Mapping[str, Callable[[], PretrainedConfig]] = {
    "llama-135m": llama_135m,
    "qwen2-0.5b": qwen2_half_billion,
    "llama32-1b": llama32_1b,
    "granite-moe-1b": granite_moe_1b,
}


def training_text() -> Iterator[str]:
    """Python's own standard library: text that every machine has."""
    left = MAX_TRAINING_CHARACTERS
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")[:left]
        left -= len(text)
        if text:
            yield text


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, so that any text goes in and any id comes out as text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=8192)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build(name: str, folder: Path, tokenizer: PreTrainedTokenizerFast) -> int:
    """Write one checkpoint; returns its number of parameters."""
    torch.manual_seed(0)
    config = SHAPES[name]()
    setattr(config, RANDOM, True)
    config.pad_token_id, config.bos_token_id, config.eos_token_id = PAD_ID, START_ID, END_ID
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        # Rows of zeros give logits of zero: with thousands of real rows beside them, greedy never takes one.
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):  # often one and the same
            table.weight[len(tokenizer) :] = 0
    model.generation_config = GenerationConfig(pad_token_id=PAD_ID, bos_token_id=START_ID, eos_token_id=END_ID)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "serving.properties").write_text("engine=Python\noption.rolling_batch=auto\n", encoding="utf-8")
    return int(model.num_parameters())


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.make_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHAPES)}; default: all")
    args = parser.parse_args()
    if unknown := set(args.names) - set(SHAPES):
        parser.error(f"no such shape: {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    tokenizer = make_tokenizer()
    for name in args.names or SHAPES:
        print(f"{args.out / name}: {build(name, args.out / name, tokenizer) / 1e6:.1f} million parameters", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
