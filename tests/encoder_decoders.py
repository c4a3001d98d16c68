"""Small random checkpoints of encoder-decoder models, and what transformers generates with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM
from transformers.models.t5 import modeling_t5

from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams

VOCABULARY: Final = 320
#: Tokens that end a text, pad one, and begin a decoder's.
EOS, PAD = 1, 0
_T5: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": PAD,
}
_BART: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "init_std": 0.3,
    "pad_token_id": PAD,
    "bos_token_id": 2,
    "eos_token_id": EOS,
    "decoder_start_token_id": EOS,
    "forced_eos_token_id": None,
}
#: The class of a model in transformers, of its configuration, and what this says.
ARCHITECTURES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "t5": ("T5", _T5 | {"initializer_factor": 8.0}),
    "mt5": ("MT5", _T5 | {"initializer_factor": 8.0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("Bart", _BART | {"forced_eos_token_id": EOS}),
    "mbart": ("MBart", _BART | {"forced_bos_token_id": 7, "scale_embedding": True}),
    "m2m_100": ("M2M100", _BART | {"forced_bos_token_id": 9}),
    "pegasus": ("Pegasus", _BART | {"decoder_start_token_id": PAD}),
}
#: Since some release of transformers, T5's attention is looked up by name, as that of the others is.
LACKING: Final = frozenset() if "ALL_ATTENTION_FUNCTIONS" in vars(modeling_t5) else frozenset({"t5", "mt5"})


def build_encoder_decoder(path: Path, architecture: str, seed: int = 0, **changes: Any) -> Path:
    """Save a model with random weights."""
    name, values = ARCHITECTURES[architecture]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**values | changes)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    for token in ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"):
        setattr(model.generation_config, token, (values | changes).get(token))
    model.save_pretrained(path)
    return path


def reference_of(path: Path) -> Any:
    """transformers' own model of a checkpoint in fp32."""
    return AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float32).eval()


def generate(model: Any, prompt: list[int], new_tokens: int, **options: Any) -> Any:
    """What transformers' `generate` returns, with scores; `new_tokens` are those after the forced first one."""
    ids = torch.tensor([prompt])
    forced = int(model.generation_config.forced_bos_token_id is not None)
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens + forced,
        return_dict_in_generate=True,
        output_logits=True,
        **{"do_sample": False, "num_beams": 1, **options},
    )


def generated_ids(model: Any, made: Any, number: int = 0) -> list[int]:
    """The ids that a result has after those that a decoder is given, without padding after the end."""
    given = 1 + int(model.generation_config.forced_bos_token_id is not None)
    ids = [int(i) for i in made.sequences[number][given:]]
    return ids[: ids.index(EOS) + 1] if EOS in ids else ids


def requested(start_ids: tuple[int, ...], prompt: list[int], number: int, **sampling: Any) -> SequenceRequest:
    """What a handler asks an engine for."""
    return SequenceRequest(list(start_ids), SamplingParams(**sampling), id=number, encoder_ids=prompt)
