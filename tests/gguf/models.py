"""Small models of transformers' with random weights, written as GGUF files the way llama.cpp's converter does it.

Names come from gguf-py's table, metadata from its writer: neither is the project's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf.constants import MODEL_ARCH_NAMES
from torch import Tensor

LAYERS = 2
WORDS = ("<unk>", "<s>", "</s>", *(chr(97 + number) for number in range(26)), "ab", "cd", "abcd")


@dataclass(frozen=True)
class Kind:
    """An architecture: the class of its configuration, the configuration's values, and what the converter does."""

    config: str
    values: dict[str, Any] = field(default_factory=dict)
    permuted: bool = False
    grouped: bool = False
    raised: bool = False
    metadata: Callable[[gguf.GGUFWriter, Any], None] = lambda writer, config: None


def _granite(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _experts(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if shared := getattr(config, "shared_expert_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(shared)


def _gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _gemma3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)


def _phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    scale = config.max_position_embeddings / config.original_max_position_embeddings
    writer.add_rope_scaling_attn_factors(
        math.sqrt(1 + math.log(scale) / math.log(config.original_max_position_embeddings))
    )
    for name in ("long", "short"):
        factors = config.rope_parameters[f"{name}_factor"]
        writer.add_tensor(f"rope_factors_{name}.weight", np.array(factors, np.float32))


def _llama3(writer: gguf.GGUFWriter, config: Any) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
    writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())


_SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0},
    **{"high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
}
_LONG = {
    **{"rope_type": "longrope", "rope_theta": 10000.0, "long_factor": [1.0 + each / 4 for each in range(8)]},
    **{"short_factor": [1.0 + each / 16 for each in range(8)], "original_max_position_embeddings": 64},
}
_FALCON = {
    **{"multi_query": True, "num_kv_heads": 2, "alibi": False, "bias": False},
    **{"ffn_hidden_size": 96, "tie_word_embeddings": False},
}
KINDS = {
    "llama": Kind("LlamaConfig", {"attention_bias": True, "tie_word_embeddings": True}, permuted=True),
    "llama 3": Kind("LlamaConfig", {"rope_parameters": _LLAMA3}, permuted=True, metadata=_llama3),
    "granite": Kind(
        "GraniteConfig",
        {"attention_multiplier": 0.3, "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 3.0},
        permuted=True,
        metadata=_granite,
    ),
    "qwen2": Kind("Qwen2Config"),
    "qwen3": Kind("Qwen3Config", {"head_dim": 32}),
    "qwen2moe": Kind(
        "Qwen2MoeConfig",
        {**_SPARSE, "shared_expert_intermediate_size": 64, "norm_topk_prob": False},
        metadata=_experts,
    ),
    "qwen3moe": Kind("Qwen3MoeConfig", {**_SPARSE, "head_dim": 32, "norm_topk_prob": True}, metadata=_experts),
    "gemma2": Kind(
        "Gemma2Config",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "tie_word_embeddings": True},
        raised=True,
        metadata=_gemma2,
    ),
    "gemma3": Kind(
        "Gemma3TextConfig",
        {
            **{"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "tie_word_embeddings": True},
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        raised=True,
        metadata=_gemma3,
    ),
    "phi3": Kind(
        "Phi3Config",
        {"rope_parameters": _LONG, "original_max_position_embeddings": 64, "pad_token_id": None},
        metadata=_phi3,
    ),
    "starcoder2": Kind("Starcoder2Config", {"use_bias": True, "tie_word_embeddings": True}),
    "falcon": Kind("FalconConfig", {**_FALCON, "num_kv_heads": 1}),
    "falcon 11b": Kind(
        "FalconConfig", {**_FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, grouped=True
    ),
    "falcon 40b": Kind("FalconConfig", {**_FALCON, "new_decoder_architecture": True}, grouped=True),
}


def random_model(kind: str) -> Any:
    """A model of transformers' with random weights, also in norms and biases."""
    values: dict[str, Any] = {
        **{"vocab_size": len(WORDS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
        **{"bos_token_id": 1, "eos_token_id": 2},
    }
    config = getattr(transformers, KINDS[kind].config)(**{**values, **KINDS[kind].values})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) / 8)
    return model


def write_model(
    model: Any,
    kind: str,
    path: Path,
    quantized: gguf.GGMLQuantizationType | None = None,
    others: Mapping[str, gguf.GGMLQuantizationType] = MappingProxyType({}),
) -> None:
    """Write a model as llama.cpp's converter would; matrices in a quantized type, if one is given.

    Args:
        others: the types of tensors that have another, by a part of their names; of biases too.
    """
    architecture = kind.split()[0]
    writer, config = gguf.GGUFWriter(path, architecture), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(config.hidden_size)
    falcon = architecture == "falcon"
    writer.add_feed_forward_length(config.ffn_hidden_size if falcon else config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_kv_heads if falcon else config.num_key_value_heads)
    if (eps := getattr(config, "rms_norm_eps", None)) is not None:
        writer.add_layer_norm_rms_eps(eps)
    else:
        writer.add_layer_norm_eps(config.layer_norm_epsilon if falcon else config.norm_epsilon)
    if "head_dim" in KINDS[kind].values:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    KINDS[kind].metadata(writer, config)
    add_vocabulary(writer)
    for name, tensor in _tensors(model, kind, architecture):
        numbers = tensor.numpy()
        own = next((other for part, other in others.items() if part in name), None)
        of_type = own if tensor.dim() == 1 else own or quantized
        if of_type is not None:
            writer.add_tensor(name, gguf.quantize(numbers, of_type), raw_dtype=of_type)
        else:
            writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """A small vocabulary with scores."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([0.0] * 3 + [-float(each) for each in range(len(WORDS) - 3)])
    writer.add_token_types([2, 3, 3] + [1] * (len(WORDS) - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _tensors(model: Any, kind: str, architecture: str) -> list[tuple[str, Tensor]]:
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture), LAYERS
    )
    config = model.config
    made = []
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if KINDS[kind].permuted and ".q_proj." in name:
            tensor = permuted(tensor, config.num_attention_heads)
        if KINDS[kind].permuted and ".k_proj." in name:
            tensor = permuted(tensor, config.num_key_value_heads)
        if KINDS[kind].grouped and ".query_key_value." in name:
            tensor = ungrouped(tensor, config.num_kv_heads, config.num_attention_heads)
        if KINDS[kind].raised and name.endswith("norm.weight"):
            tensor = tensor + 1
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            stem = name.removesuffix("gate_up_proj")
            for part, each in (("gate_proj", gate), ("up_proj", up)):
                made.append((f"{names.get_name(f'{stem}{part}')}.weight", each.contiguous()))
            continue
        if name.endswith("experts.down_proj"):
            made.append((f"{names.get_name(name)}.weight", tensor))
            continue
        if name.endswith("shared_expert_gate.weight"):
            tensor = tensor.squeeze()
        stem, _, end = name.rpartition(".")
        target = names.get_name(stem)
        assert target is not None, name
        made.append((f"{target}.{end}", tensor))
    return made


def permuted(tensor: Tensor, heads: int) -> Tensor:
    """The rows as llama.cpp's converter orders them for its rotary embedding."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def ungrouped(tensor: Tensor, key_heads: int, heads: int) -> Tensor:
    """Rows that are by groups of one key head, as all queries, then all keys, then all values."""
    parts = tensor.reshape(key_heads, heads // key_heads + 2, -1, *tensor.shape[1:])
    return torch.cat([part.flatten(0, 2) for part in (parts[:, :-2], parts[:, -2:-1], parts[:, -1:])])
