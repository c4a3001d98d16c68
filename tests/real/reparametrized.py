"""SmolLM2 in the parameters of other architectures: trained weights for what a registry has no trained model of.

SmolLM2 is a Llama. Each architecture here computes the same function, up to rounding, so its perplexity is SmolLM2's:

- Weights that are fused elsewhere are concatenated; RoPE whose pairs are neighbours has heads' rows reordered.
- Experts are all alike and the router is random: whichever are chosen, their weighted mean is the MLP.
- Shared experts, Mamba mixers' like, and biases that SmolLM2 has none of are 0.
- A norm within attention (of queries and keys, or of MLA's latent) would change the function. Half of what it norms are
  constants, from biases, so large that its root mean square is constant; its weights divide that out, and are 0 for
  the constants.
- A LayerNorm of [x, -x] is the RMSNorm of x: the residual stream has twice the width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

HEADS: Final = 9
KV_HEADS: Final = 3
HEAD: Final = 64
WIDTH: Final = 576
MLP: Final = 1536
LAYERS: Final = 30
THETA: Final = 100000.0
EXPERTS: Final = 4
#: Constants beside queries and keys, and their root mean square with as many others that are small beside them.
QK_CONSTANT: Final = 1448.0
QK_RMS: Final = 1024.0

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Layer:
    """One layer's weights, as Llama has them: (outputs, inputs)."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


def attention(layer: Layer) -> Tensors:
    return _linears(q=layer.q, k=layer.k, v=layer.v, o=layer.o)


def biased(layer: Layer) -> Tensors:
    """With biases of queries, keys and values, which are 0."""
    tensors = attention(layer)
    return tensors | {f"self_attn.{one}_proj.bias": torch.zeros(len(getattr(layer, one))) for one in "qkv"}


def of_neighbours(layer: Layer) -> Tensors:
    """For RoPE that turns dimensions 2i and 2i + 1 together, instead of i and i + HEAD / 2."""
    return attention(layer) | _linears(q=_interleaved(layer.q), k=_interleaved(layer.k))


def of_neighbours_biased(layer: Layer) -> Tensors:
    return biased(layer) | of_neighbours(layer)


def fused(layer: Layer) -> Tensors:
    return {
        "self_attn.qkv_proj.weight": torch.cat((layer.q, layer.k, layer.v)),
        "self_attn.o_proj.weight": layer.o,
    }


def with_idle_heads(layer: Layer) -> Tensors:
    """Twice as many heads, the others of which give nothing: their number follows from the residual stream's width."""
    tensors = {name: torch.cat((weight, torch.zeros_like(weight))) for name, weight in attention(layer).items()}
    return tensors | _linears(o=torch.cat((layer.o, torch.zeros_like(layer.o)), 1))


def with_normed_queries(layer: Layer) -> Tensors:
    """Heads of 2 HEAD dimensions: the pairs of RoPE at even places are SmolLM2's, those at odd ones constants."""
    tensors, real = Tensors(), torch.zeros(2 * HEAD, dtype=torch.bool)
    real[::2] = True
    for name, weight in (("q", layer.q), ("k", layer.k)):
        tensors[f"self_attn.{name}_proj.weight"] = _spread(weight, real)
        tensors[f"self_attn.{name}_proj.bias"] = torch.where(real, 0.0, QK_CONSTANT).repeat(len(weight) // HEAD)
        scale = math.sqrt(2) if name == "q" else 1.0  # scores are divided by the root of a head twice as wide
        tensors[f"self_attn.{name}_norm.weight"] = torch.where(real, QK_RMS * scale, 0.0)
    tensors["self_attn.v_proj.weight"] = _spread(layer.v, real)
    tensors["self_attn.v_proj.bias"] = torch.zeros(KV_HEADS * 2 * HEAD)
    tensors["self_attn.o_proj.weight"] = _spread(layer.o.T, real).T
    tensors["self_attn.o_proj.bias"] = torch.zeros(WIDTH)
    return tensors


def with_sinks(layer: Layer) -> Tensors:
    """With sinks that nothing goes to."""
    return biased(layer) | {"self_attn.o_proj.bias": torch.zeros(WIDTH), "self_attn.sinks": torch.full((HEADS,), -1e4)}


def latent(layer: Layer) -> Tensors:
    """MLA: all values are the latent, all keys one rotated key, of which a query has only its own head's part."""
    half = HEAD // 2
    places = torch.cat([torch.arange(KV_HEADS * half) + at for at in (0, KV_HEADS * half)])
    rows = places.view(2, KV_HEADS, half).transpose(0, 1).reshape(KV_HEADS, HEAD)  # of each head's dimensions
    key = torch.zeros(KV_HEADS * HEAD, WIDTH)
    key[rows.flatten()] = layer.k
    query = torch.zeros(HEADS, HEAD + KV_HEADS * HEAD, WIDTH)
    values = torch.zeros(HEADS, 2 * HEAD, KV_HEADS * HEAD + HEAD)
    group = HEADS // KV_HEADS
    for head, weight in enumerate(layer.q.view(HEADS, HEAD, WIDTH)):
        query[head, HEAD + rows[head // group]] = 2 * weight  # scores are divided by 16, for 8
        values[head, HEAD:, (head // group) * HEAD : (head // group + 1) * HEAD] = torch.eye(HEAD)
    constant, rms = 1024.0, 512.0  # a quarter of the latent is the constant
    return {
        "self_attn.q_proj.weight": query.flatten(0, 1),
        "self_attn.kv_a_proj_with_mqa.weight": torch.cat((layer.v, torch.zeros(HEAD, WIDTH), key)),
        "self_attn.kv_a_proj_with_mqa.bias": torch.cat(
            (torch.zeros(len(layer.v)), torch.full((HEAD,), constant), torch.zeros(len(key)))
        ),
        "self_attn.kv_a_layernorm.weight": torch.cat((torch.full((len(layer.v),), rms), torch.zeros(HEAD))),
        "self_attn.kv_b_proj.weight": values.flatten(0, 1),
        "self_attn.o_proj.weight": layer.o,
        "self_attn.o_proj.bias": torch.zeros(WIDTH),
    }


def mlp(layer: Layer) -> Tensors:
    return {f"mlp.{name}_proj.weight": getattr(layer, name) for name in ("gate", "up", "down")}


def fused_mlp(layer: Layer) -> Tensors:
    return {"mlp.gate_up_proj.weight": torch.cat((layer.gate, layer.up)), "mlp.down_proj.weight": layer.down}


def experts(layer: Layer, at: str = "mlp", router: str = "gate") -> Tensors:
    return {
        f"{at}.{router}.weight": _router(layer),
        f"{at}.experts.gate_up_proj": torch.cat((layer.gate, layer.up)).expand(EXPERTS, -1, -1),
        f"{at}.experts.down_proj": layer.down.expand(EXPERTS, -1, -1),
    }


def experts_of_granite(layer: Layer) -> Tensors:
    return experts(layer, "block_sparse_moe", "router")


def with_shared_expert(layer: Layer) -> Tensors:
    """Beside an expert that all tokens have, and which gives nothing."""
    shared = {"gate": layer.gate[:512], "up": layer.up[:512], "down": torch.zeros(WIDTH, 512)}
    tensors = experts(layer) | {f"mlp.shared_expert.{name}_proj.weight": one for name, one in shared.items()}
    return tensors | {"mlp.shared_expert_gate.weight": _router(layer)[:1]}


def with_shared_experts(layer: Layer) -> Tensors:
    """The same under DeepSeek's names, with a router that corrects its scores."""
    shared = {"gate": layer.gate, "up": layer.up, "down": torch.zeros_like(layer.down)}
    tensors = experts(layer) | {f"mlp.shared_experts.{name}_proj.weight": one for name, one in shared.items()}
    return tensors | {"mlp.gate.e_score_correction_bias": torch.linspace(-0.1, 0.1, EXPERTS)}


def experts_of_gpt_oss(layer: Layer) -> Tensors:
    """Its gate is SiLU where swiglu_alpha is 1; it multiplies by what `up` gives and 1, so a bias takes 1 away."""
    scale = 64.0  # beside which bf16 rounds that 1 away no more than others
    both = torch.stack((layer.gate, scale * layer.up), 1).flatten(0, 1)
    return {
        "mlp.router.weight": _router(layer),
        "mlp.router.bias": torch.zeros(EXPERTS),
        "mlp.experts.gate_up_proj": both.T.expand(EXPERTS, -1, -1),
        "mlp.experts.gate_up_proj_bias": torch.tensor([0.0, -1.0]).repeat(MLP).expand(EXPERTS, -1),
        "mlp.experts.down_proj": layer.down.T.expand(EXPERTS, -1, -1) / scale,
        "mlp.experts.down_proj_bias": torch.zeros(EXPERTS, WIDTH),
    }


@dataclass(frozen=True)
class Architecture:
    """How SmolLM2 is written as a `model_type`.

    Attributes:
        config: beside what SmolLM2's own configuration has.
        embedding: what the embedding is divided by, as the architecture multiplies by it.
        tied: whether the lm_head is the embedding.
        norm_offset: what the architecture adds to norms' weights.
        doubled: whether the residual stream is [x, -x].
    """

    attention: Callable[[Layer], Tensors] = attention
    mlp: Callable[[Layer], Tensors] = mlp
    config: Mapping[str, Any] = field(default_factory=dict)
    embedding: float = 1.0
    tied: bool = True
    norm_offset: float = 0.0
    doubled: bool = False


_SHARED: Final = {
    **{"n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": MLP},
    **{"n_group": 2, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0},
}
_EXPERTS: Final = {"num_experts": EXPERTS, "num_local_experts": EXPERTS, "num_experts_per_tok": 2}
_NORMED: Final = {"head_dim": 2 * HEAD, "attention_bias": True}


def _of_heads(place: int) -> float:
    """What RoPE's frequency at this place of the rotated key is divided by, to be that of its own head's dimension."""
    return float(THETA ** (2 * (place % (HEAD // 2)) / HEAD - 2 * place / (KV_HEADS * HEAD)))


_FACTORS: Final = [_of_heads(place) for place in range(KV_HEADS * HEAD // 2)]
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "mistral": Architecture(config={"sliding_window": None}),
    "qwen2": Architecture(biased, config={"use_sliding_window": False}),
    "qwen3": Architecture(with_normed_queries, config=_NORMED),
    "phi3": Architecture(fused, fused_mlp, {"partial_rotary_factor": 1.0}),
    "glm": Architecture(of_neighbours_biased, fused_mlp, {"attention_bias": True, "partial_rotary_factor": 1.0}),
    "helium": Architecture(of_neighbours),
    "gemma": Architecture(
        config={"hidden_activation": "silu"}, embedding=math.sqrt(WIDTH), tied=False, norm_offset=-1.0
    ),
    "granite": Architecture(
        config={"attention_multiplier": 1 / 8, "embedding_multiplier": 16.0, "logits_scaling": 1 / 16}, embedding=16.0
    ),
    "stablelm": Architecture(
        with_idle_heads,
        config={
            **{"hidden_size": 2 * WIDTH, "num_attention_heads": 2 * HEADS, "num_key_value_heads": 2 * KV_HEADS},
            **{"partial_rotary_factor": 1.0, "layer_norm_eps": 1e-5},
        },
        tied=False,
        doubled=True,
    ),
    "mixtral": Architecture(mlp=experts, config={**_EXPERTS, "sliding_window": None}),
    "granitemoe": Architecture(mlp=experts_of_granite, config={**_EXPERTS, "attention_multiplier": 1 / 8}),
    "qwen2_moe": Architecture(
        biased,
        with_shared_expert,
        {**_EXPERTS, "moe_intermediate_size": MLP, "shared_expert_intermediate_size": 512, "norm_topk_prob": True},
    ),
    "qwen3_moe": Architecture(
        with_normed_queries, experts, {**_EXPERTS, **_NORMED, "moe_intermediate_size": MLP, "norm_topk_prob": True}
    ),
    "glm4_moe": Architecture(mlp=with_shared_experts, config={**_SHARED, "partial_rotary_factor": 1.0}),
    "deepseek_v3": Architecture(
        latent,
        with_shared_experts,
        {
            **_SHARED,
            **{"q_lora_rank": None, "kv_lora_rank": (KV_HEADS + 1) * HEAD, "attention_bias": True},
            **{"qk_rope_head_dim": KV_HEADS * HEAD, "qk_nope_head_dim": HEAD, "v_head_dim": HEAD},
            **{"rope_interleave": False, "num_key_value_heads": HEADS, "head_dim": KV_HEADS * HEAD},
            "rope_parameters": {
                **{"rope_type": "longrope", "rope_theta": THETA, "attention_factor": 1.0},
                **{"short_factor": _FACTORS, "long_factor": _FACTORS, "original_max_position_embeddings": 8192},
            },
        },
    ),
    "gpt_oss": Architecture(
        with_sinks,
        experts_of_gpt_oss,
        {
            **{**_EXPERTS, "swiglu_alpha": 1.0, "swiglu_limit": 1e4, "attention_bias": True},
            "layer_types": ["full_attention"] * LAYERS,
        },
    ),
}


def write(model_type: str, smol: Path, target: Path) -> Path:
    """Write SmolLM2 as another architecture, in bf16, with its tokenizer.

    Args:
        smol: its checkpoint, as a Llama.
    """
    made = ARCHITECTURES[model_type]
    llama = {name: tensor.float() for name, tensor in load_file(smol / "model.safetensors").items()}
    tensors = {"model.embed_tokens.weight": llama["model.embed_tokens.weight"] / made.embedding}
    tensors["model.norm.weight"] = llama["model.norm.weight"] + made.norm_offset
    for number in range(LAYERS):
        at = f"model.layers.{number}."
        weights = {
            name: llama[f"{at}{room}.{name}_proj.weight"]
            for room, names in (("self_attn", "q k v o"), ("mlp", "gate up down"))
            for name in names.split()
        }
        layer = Layer(**weights)
        for name, tensor in (made.attention(layer) | made.mlp(layer)).items():
            tensors[at + name] = tensor
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{norm}.weight"] = llama[f"{at}{norm}.weight"] + made.norm_offset
    if not made.tied:
        tensors["lm_head.weight"] = llama["model.embed_tokens.weight"]
    if made.doubled:
        tensors = _doubled(tensors)
    config = _config(model_type, tied=made.tied, own=made.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if made.tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict({n: t.to(torch.bfloat16).contiguous() for n, t in tensors.items()}, assign=True)
    model.tie_weights()
    model.save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        (target / name).write_bytes((smol / name).read_bytes())
    return target


def _config(model_type: str, *, tied: bool, own: Mapping[str, Any]) -> PretrainedConfig:
    llama: dict[str, Any] = {
        **{"hidden_size": WIDTH, "intermediate_size": MLP, "num_hidden_layers": LAYERS, "vocab_size": 49152},
        **{"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "hidden_act": "silu"},
        **{"rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "tie_word_embeddings": tied, "dtype": "bfloat16"},
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    }
    if "partial_rotary_factor" in own:
        llama["rope_parameters"]["partial_rotary_factor"] = own["partial_rotary_factor"]
    config: PretrainedConfig = AutoConfig.for_model(model_type, **{**llama, **own})
    return config


def _doubled(tensors: Mapping[str, Tensor]) -> Tensors:
    """For a residual stream of [x, -x], whose norms are LayerNorms."""
    doubled = Tensors()
    for name, tensor in tensors.items():
        if "norm" in name:  # what reads after it, reads x alone
            doubled[name] = torch.cat((tensor, torch.zeros_like(tensor)))
            doubled[name.replace(".weight", ".bias")] = torch.zeros(2 * len(tensor))
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            doubled[name] = torch.cat((tensor, -tensor))
        elif name == "model.embed_tokens.weight":
            doubled[name] = torch.cat((tensor, -tensor), 1)
        else:
            doubled[name] = torch.cat((tensor, torch.zeros_like(tensor)), 1)
    return doubled


def _linears(**weights: Tensor) -> Tensors:
    return {f"self_attn.{name}_proj.weight": weight for name, weight in weights.items()}


def _interleaved(weight: Tensor) -> Tensor:
    return weight.view(-1, 2, HEAD // 2, WIDTH).transpose(1, 2).reshape(-1, WIDTH)


def _spread(weight: Tensor, real: Tensor) -> Tensor:
    """Heads' rows where `real` is true, and rows of 0 elsewhere."""
    heads = len(weight) // HEAD
    spread = torch.zeros(heads, len(real), weight.shape[1])
    spread[:, real] = weight.view(heads, HEAD, -1)
    return spread.flatten(0, 1)


def _router(layer: Layer) -> Tensor:
    """Random, and another for each layer."""
    seed = int(layer.q[0, 0].item() * 1e6)
    return torch.randn(EXPERTS, WIDTH, generator=torch.Generator().manual_seed(seed)) * 0.1
