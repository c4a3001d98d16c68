"""The architectures that are served from GGUF files: which model of transformers each is, and its tensors' names.

Runs wherever a GGUF file is read. `configuring` makes the configuration, `weights` the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from ..core.names import did_you_mean
from .errors import GgufError
from .shards import GgufModel

#: Names of tensors, before `.weight` or `.bias`: GGUF's, and transformers'. Those of layers lack the prefix.
_TOP: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP: Final = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_USUAL: Final = {**_ATTENTION, **_MLP, "ffn_norm": "post_attention_layernorm"}
_NORMED: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_FOUR_NORMS: Final = {
    **_ATTENTION,
    **_MLP,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
#: Tensors that have all experts' weights, one after the other; {} stands for the expert's number.
_EXPERTS: Final = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_SPARSE: Final = {**_ATTENTION, "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate", **_EXPERTS}
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class Architecture:
    """What a GGUF architecture is in transformers.

    Attributes:
        model_type, class_name: of config.json.
        layer: names of a layer's tensors.
        permuted: tensors whose rows llama.cpp's converter reorders, with the metadata's number of heads of each.
        grouped: a tensor of queries, keys and values, which transformers has by groups of one key head, and the
            converter one after the other.
        raised: whether the converter adds 1 to the weights of norms.
        unused: tensors outside of layers that the configuration has, or that nothing needs.
        top: names of the tensors outside of layers.
        layers: transformers' name of what has the layers.
    """

    model_type: str
    class_name: str
    layer: Mapping[str, str]
    permuted: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    grouped: str = ""
    raised: bool = False
    unused: frozenset[str] = frozenset({"rope_freqs"})
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)
    layers: str = "model.layers"


_FALCON: Final = Architecture(
    "falcon",
    "FalconForCausalLM",
    {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attention.query_key_value",
        "attn_output": "self_attention.dense",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    grouped="attn_qkv",
    top={"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f", "output": "lm_head"},
    layers="transformer.h",
)
#: Falcon 40B and 180B norm what the MLP and what attention reads by itself.
_FALCON_40B: Final = replace(_FALCON, layer={**_FALCON.layer, "attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"})
SECOND_NORM: Final = "blk.0.attn_norm_2.weight"

_HEADS: Final = {"attn_q": ".attention.head_count", "attn_k": ".attention.head_count_kv"}

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture("llama", "LlamaForCausalLM", _USUAL, _HEADS),
    "granite": Architecture("granite", "GraniteForCausalLM", _USUAL, _HEADS),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _USUAL),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", {**_USUAL, **_NORMED}),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        {
            **_SPARSE,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
    ),
    "qwen3moe": Architecture("qwen3_moe", "Qwen3MoeForCausalLM", {**_SPARSE, **_NORMED}),
    "gemma2": Architecture("gemma2", "Gemma2ForCausalLM", _FOUR_NORMS, raised=True),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", {**_FOUR_NORMS, **_NORMED}, raised=True),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
        unused=frozenset({"rope_factors_long", "rope_factors_short"}),
    ),
    "starcoder2": Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        {**_ATTENTION, "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
    "falcon": _FALCON,
}


def architecture_of(model: GgufModel) -> Architecture:
    """The architecture of a language model.

    Raises:
        GgufError: the file is something else, or of another architecture; the message lists those that are served.
    """
    kind = model.metadata.get("general.type", "model")
    name = model.metadata.get("general.architecture")
    if kind == "adapter":
        raise GgufError(
            f"{model.path}: a LoRA adapter (general.type is adapter); expected a model. Adapters are served as peft "
            "saves them, not from GGUF files"
        )
    if kind == "mmproj" or name == "clip":
        raise GgufError(
            f"{model.path}: a projector of images (mmproj); expected a language model. Images are not served from GGUF "
            "files"
        )
    if not isinstance(name, str):
        raise GgufError(f"{model.path}: the metadata lacks general.architecture; expected the model's")
    if name not in ARCHITECTURES:
        raise GgufError(
            f"{model.path}: architecture {name!r} is not served from GGUF files{did_you_mean(name, ARCHITECTURES)}; "
            f"expected one of {', '.join(ARCHITECTURES)}"
        )
    return _FALCON_40B if name == "falcon" and SECOND_NORM in model.tensors else ARCHITECTURES[name]
