"""Small random checkpoints of many architectures, built with transformers and loaded by the real loading code."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from inspect import signature
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    ApertusConfig,
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    CodeGenConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma4TextConfig,
    Glm4MoeConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MistralConfig,
    MptConfig,
    NanoChatConfig,
    NemotronConfig,
    NemotronHConfig,
    Olmo2Config,
    OlmoConfig,
    OlmoHybridConfig,
    OpenAIGPTConfig,
    OPTConfig,
    PhiConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    XGLMConfig,
    YoutuConfig,
)

VOCABULARY = 320
RELEASE: Final = Version(transformers.__version__)
#: What models call their cache: since transformers 5.24 by another name.
CACHE: Final = "cache" if "cache" in signature(BloomForCausalLM.forward).parameters else "past_key_values"
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}


def _gpt2() -> PretrainedConfig:
    return GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=256,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    )


_LATENTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}

_GROUPS: dict[str, Any] = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}

# What each stands for: the features that attention has to get right.
ARCHITECTURES: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**_COMMON, num_key_value_heads=2),  # grouped heads
    "many_heads": lambda: Qwen3Config(  # more of them read the same keys than walk together
        **(_COMMON | {"num_attention_heads": 29}), num_key_value_heads=1, head_dim=16
    ),
    "apertus": lambda: ApertusConfig(**_COMMON, num_key_value_heads=2),  # an activation with numbers of its own
    "qwen2": lambda: Qwen2Config(**_COMMON, num_key_value_heads=2),  # biases in attention
    "qwen3": lambda: Qwen3Config(**_COMMON, num_key_value_heads=2, head_dim=32),  # norms on queries and keys
    "gpt_neox": lambda: GPTNeoXConfig(**_COMMON, rotary_pct=0.25),  # partial rotary, parallel residual
    "phi": lambda: PhiConfig(**_COMMON, partial_rotary_factor=0.5),
    "gemma2": lambda: Gemma2Config(  # soft-capping, alternating sliding window
        **_COMMON,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=24,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
    ),
    "mistral": lambda: MistralConfig(**_COMMON, num_key_value_heads=2, sliding_window=20),  # sliding window
    "gpt2": _gpt2,  # learned positions
    "nanochat": lambda: NanoChatConfig(**_COMMON, num_key_value_heads=2),  # turns the other way, norms without weights
    "gemma4": lambda: _gemma4(),
    # learned positions that begin at 2, queries scaled before the attention
    "opt": lambda: OPTConfig(**_COMMON, ffn_dim=96, word_embed_proj_dim=64),
    "opt_350m": lambda: OPTConfig(  # norms after the sums, tokens narrower than the layers
        **_COMMON, ffn_dim=96, word_embed_proj_dim=32, do_layer_norm_before=False
    ),
    "olmo": lambda: OlmoConfig(**_COMMON, num_key_value_heads=2),  # norms without weights
    "olmo2": lambda: Olmo2Config(**_COMMON, num_key_value_heads=2),  # norms over all heads, and of branches only
    "nemotron": lambda: NemotronConfig(**_COMMON, num_key_value_heads=2),  # squared ReLU, norms of 1 + weight
    "qwen3_moe": lambda: Qwen3MoeConfig(  # a mixture of experts, dense in one layer
        **_COMMON,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=32,  # as many as keys and values have columns
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        norm_topk_prob=True,
        mlp_only_layers=[1],
    ),
    "qwen2_moe": lambda: Qwen2MoeConfig(  # weights that don't add up to 1, a shared expert with a gate
        **_COMMON,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
        norm_topk_prob=False,
    ),
    "qwen2_moe_window": lambda: Qwen2MoeConfig(  # the first layer's window is in its mask only
        **_COMMON,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
        use_sliding_window=True,
        sliding_window=24,
        max_window_layers=1,
    ),
    "glm4_moe": lambda: Glm4MoeConfig(  # sigmoids, a correction for the choice, a factor, a shared expert
        **_COMMON,
        num_key_value_heads=2,
        head_dim=16,
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        routed_scaling_factor=1.5,
        first_k_dense_replace=1,
    ),
    "deepseek_v2": lambda: DeepseekV2Config(  # keys and values of a latent, rotations of complex numbers, experts
        **_COMMON,
        **_LATENTS,
        **_GROUPS,
        q_lora_rank=None,
        topk_method="group_limited_greedy",
    ),
    "deepseek_v3": lambda: DeepseekV3Config(  # groups of experts judged by two, a correction for the choice
        **_COMMON,
        **_LATENTS,
        **_GROUPS,
        q_lora_rank=24,
    ),
    "youtu": lambda: YoutuConfig(**_COMMON, **_LATENTS, q_lora_rank=24),  # queries of a latent too
    "gpt_oss": lambda: GptOssConfig(  # biases everywhere, sinks, a gate of its own, rotation tables of half the width
        **_COMMON,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=24,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
}

if newer := getattr(transformers, "MiniCPM3Config", None):  # which 5.9 lacks
    ARCHITECTURES["minicpm3"] = lambda: newer(**_COMMON, **_LATENTS, q_lora_rank=24, rope_interleave=False)
if Version("5.13") > RELEASE:  # where it fails: "no attribute 'num_experts'"
    del ARCHITECTURES["deepseek_v2"]

_DELTA_NETS: dict[str, Any] = {
    "num_key_value_heads": 2,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}

_STATE_SPACES: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
}
_OF_ATTENTION = {"num_attention_heads", "intermediate_size", "max_position_embeddings"}

# Layers with a state, mostly beside those with attention.
HYBRID: dict[str, Any] = {
    "qwen3_5": lambda: Qwen3_5TextConfig(**_COMMON, **_DELTA_NETS, head_dim=16),  # an attention with a gate
    "qwen3_next": lambda: Qwen3NextConfig(  # one projection, key head by key head; experts
        **_COMMON,
        **_DELTA_NETS,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48,
    ),
    # layers of two classes, of which those with attention have norms of branches; what is put in may be 2
    "olmo_hybrid": lambda: OlmoHybridConfig(**_COMMON, **_DELTA_NETS, linear_allow_neg_eigval=True),
    "lfm2": lambda: Lfm2Config(  # short convolutions
        **_COMMON, num_key_value_heads=2, conv_bias=True, layer_types=["conv", "full_attention", "conv"]
    ),
    "granite_h": lambda: GraniteMoeHybridConfig(  # state spaces in groups, factors everywhere, no positions
        **_COMMON,
        **_STATE_SPACES,
        num_key_value_heads=2,
        layer_types=["mamba", "attention", "mamba"],
        num_local_experts=0,
        shared_intermediate_size=96,
        position_embedding_type="nope",
        residual_multiplier=0.5,
        embedding_multiplier=3.0,
        logits_scaling=2.0,
        attention_multiplier=0.2,
    ),
    "nemotron_h": lambda: NemotronHConfig(  # layers that mix tokens or have experts
        **(_COMMON | {"num_hidden_layers": None}),
        num_key_value_heads=2,
        head_dim=16,
        mamba_num_heads=4,
        mamba_head_dim=32,
        ssm_state_size=16,
        n_groups=2,
        layers_block_type=["mamba", "moe", "attention", "mamba", "moe"],
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=48,
    ),
    "falcon_h1": lambda: FalconH1Config(  # a state space beside the attention, without a norm; factors of everything
        **_COMMON,
        num_key_value_heads=2,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_ssm=64,
        mamba_n_groups=1,
        mamba_d_state=16,
        mamba_rms_norm=False,
        attention_in_multiplier=1.5,
        attention_out_multiplier=0.9,
        ssm_in_multiplier=1.25,
        ssm_out_multiplier=0.7,
        ssm_multipliers=[0.35, 0.25, 0.8, 0.5, 0.3],
        key_multiplier=0.4,
        mlp_multipliers=[0.9, 0.3],
        embedding_multiplier=5.0,
        lm_head_multiplier=0.1,
    ),
    "jamba": lambda: JambaConfig(  # norms of what makes steps, B and C; layers of two classes, experts
        **_COMMON,
        num_key_value_heads=2,
        attn_layer_period=3,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=4,
        num_experts_per_tok=2,
        mamba_d_state=16,
        mamba_dt_rank=8,
    ),
    "mamba": lambda: MambaConfig(  # no attention at all
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        state_size=8,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    ),
    "mamba2": lambda: Mamba2Config(
        **{name: _COMMON[name] for name in _COMMON.keys() - _OF_ATTENTION},
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=2,
    ),
}


def _mpt() -> PretrainedConfig:
    config = MptConfig(
        vocab_size=VOCABULARY, d_model=96, n_layers=2, n_heads=6, max_seq_len=256, bos_token_id=0, eos_token_id=1,
        initializer_range=0.2,
    )  # fmt: skip
    config.attn_config.softmax_scale = 0.5
    return config


def _gemma4() -> PretrainedConfig:
    """Heads of two sizes, values with norms; layers that read others' keys, and are given more than the stream."""
    full = {"head_dim": 32}
    return Gemma4TextConfig(
        **(_COMMON | {"num_hidden_layers": 6}),
        num_key_value_heads=2,
        head_dim=16,
        layer_types=["sliding_attention", "full_attention"] * 3,
        per_layer_config={1: full, 3: full, 5: full},
        sliding_window=24,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=VOCABULARY,
        final_logit_softcapping=10.0,
    )


# An attention of the model's own, which torch can't page and the native kernels can.
OWN_ATTENTION: dict[str, Any] = {
    "bloom": lambda: BloomConfig(  # scores grow with the position, a norm after the embedding
        vocab_size=VOCABULARY,
        hidden_size=64,
        n_layer=2,
        n_head=4,
        seq_length=256,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    ),
    "mpt": _mpt,  # the same of six heads, a factor of its own
    "falcon": lambda: FalconConfig(**_COMMON, alibi=False, multi_query=True, bias=False),  # one key head, rotated
    "falcon_rw": lambda: FalconConfig(**_COMMON, alibi=True, multi_query=False, parallel_attn=False, bias=True),
    "falcon_40b": lambda: FalconConfig(  # grouped heads, two norms of the same
        **_COMMON, alibi=False, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=2
    ),
    "gptj": lambda: GPTJConfig(  # its rotations are a table
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=256,
        rotary_dim=8,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    ),
    "codegen": lambda: CodeGenConfig(  # four groups of queries, values and keys
        vocab_size=VOCABULARY,
        n_embd=128,
        n_layer=2,
        n_head=8,
        n_positions=256,
        rotary_dim=8,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    ),
    "xglm": lambda: XGLMConfig(  # positions of a table that is computed
        vocab_size=VOCABULARY,
        d_model=64,
        ffn_dim=96,
        num_layers=2,
        attention_heads=4,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        decoder_start_token_id=1,
        init_std=0.2,
    ),
    "openai_gpt": lambda: OpenAIGPTConfig(  # the first one: norms after the sums, no cache of its own
        vocab_size=VOCABULARY,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=256,
        initializer_range=0.2,
    ),
    "gpt_neo": lambda: GPTNeoConfig(  # every other layer has a window
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=8,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    ),
}

_MADE: Final = ARCHITECTURES | OWN_ATTENTION | HYBRID
# The oldest release whose form of an architecture is read. With older ones it runs on torch: their modules choose
# experts, convolve or update states in code of their own, not in a module or function that can be watched.
_READ_SINCE: Final = {
    **dict.fromkeys(("deepseek_v3", "glm4_moe"), "5.13"),
    **dict.fromkeys(("olmo_hybrid", "granite_h", "nemotron_h", "falcon_h1", "jamba", "mamba", "mamba2"), "5.15"),
}
#: What runs on the native kernels.
NATIVE: dict[str, Any] = {
    name: make for name, make in _MADE.items() if Version(_READ_SINCE.get(name, "5.9")) <= RELEASE
}


def since(release: str) -> pytest.MarkDecorator:
    """Skips a test with older transformers, which differ in what it tests."""
    return pytest.mark.skipif(Version(release) > RELEASE, reason=f"for transformers {release} and newer")


#: A few that have, between them, every kind of part that a recipe can have.
REPRESENTATIVE: Final = frozenset(
    {"llama", "gemma2", "gemma4", "gpt_oss", "qwen2_moe", "deepseek_v3", "bloom", "gpt2"}  # attention, experts
    | {"lfm2", "qwen3_5", "granite_h", "jamba"}  # convolutions, and states of three kinds
)


#: One of each kind of layer: for what takes seconds with each.
OF_EACH_KIND: Final = frozenset({"llama", "gpt_oss", "qwen2_moe", "lfm2", "jamba"})


def representative_first(
    architectures: Iterable[str] = NATIVE, representative: Collection[str] = REPRESENTATIVE
) -> list[Any]:
    """Parameters for a test that is dear: in `make test` the representative ones, in `make test-all` all."""
    return [pytest.param(name, marks=() if name in representative else pytest.mark.slow) for name in architectures]


def build_checkpoint(
    path: Path, architecture: str, dtype: torch.dtype = torch.float32, seed: int = 7, *, sinks: bool = False
) -> Path:
    """Save a random model of this architecture; the same one every time.

    Args:
        sinks: with numbers as trained models have them, see `plant_sinks`.
    """
    config = _MADE[architecture]()
    if sinks:
        config.tie_word_embeddings = False
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    for tensor in model.state_dict().values():
        if tensor.dim() == 1:  # norms of 1 and biases of 0 would hide what they do
            tensor += 0.1 * torch.randn_like(tensor)
    if sinks:
        plant_sinks(model)
    model.to(dtype)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(path)
    return path


#: Tokens that carry huge numbers, and the columns of the residual stream that they have them in.
SINKS: Final = {0: 3000.0, 3: 1500.0, 17: -2000.0}
_HUGE: Final = (7, 21)
_OUTLIERS: Final = (11, 30)  # columns that are large for all tokens


@torch.no_grad()
def plant_sinks(model: Any) -> None:
    """Make a model as ill-conditioned as trained ones: attention sinks, outlier channels, large and tiny norm weights.

    What is huge in the residual stream hardly shows in the logits, as in trained models.
    """
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    for token, size in SINKS.items():
        table[token, list(_HUGE)] += size * torch.tensor([1.0, -0.5])
    for name, tensor in model.named_parameters():
        if tensor.dim() == 2 and tensor.shape[0] == table.shape[1] and tensor is not table:
            tensor[list(_OUTLIERS)] *= 8
        if tensor.dim() == 1 and "norm" in name and len(tensor) > max(_OUTLIERS):
            tensor[list(_OUTLIERS)] *= 10
            tensor[[1, 2]] *= 1e-3
    head[:, [each for each in (*_HUGE, *_OUTLIERS) if each < head.shape[1]]] *= 1e-2
