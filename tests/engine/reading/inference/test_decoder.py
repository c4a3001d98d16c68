"""What is read from a model is what its configuration says, though the configuration was never looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import softplus
from transformers import AutoModelForCausalLM, Lfm2MoeConfig, Olmo3Config
from transformers.models.falcon_h1 import modeling_falcon_h1 as falcon_h1

from djl_python.engine.attention.lookup import PAGED, register
from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.reading.recipe.decoder import ExpertGroups, Experts, Mlp, Recipe
from djl_python.engine.reading.recipe.mixers import Attention, AttentionMixer, LatentAttention
from djl_python.engine.reading.recipe.primitives import NotUnderstoodError
from tests.checkpoints import NATIVE, OWN_ATTENTION, build_checkpoint, since


def loaded(path: Path, architecture: str, dtype: torch.dtype = torch.float32, *, sinks: bool = False) -> Any:
    checkpoint = build_checkpoint(path, architecture, dtype, sinks=sinks)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
    if architecture not in OWN_ATTENTION:
        model.set_attn_implementation(PAGED)
    return model


def features(recipe: Recipe) -> dict[str, Any]:
    """The properties in which architectures differ, of the first layer and the first attention."""
    layer = recipe.layers[0]
    mlps = [each.mlp.body for each in recipe.layers if each.mlp is not None]
    mlp = mlps[0] if mlps else None
    first = layer.mixers[0] if layer.mixers else None
    norms = [norm for one in (first, layer.mlp) for norm in ((None, None) if one is None else (one.before, one.after))]
    return {
        "mixers": ["+".join(type(each.body).__name__ for each in one.mixers) for one in recipe.layers],
        **(of_attention(recipe.attentions[0]) if recipe.attentions else {}),
        "windows": [each.window for each in recipe.attentions],
        "norms": "".join("-" if norm is None else norm.kind[0] for norm in norms),
        "gated": mlp is not None and mlp.gate is not None,
        "activation": mlp and mlp.activation,
        "experts": [
            len(one.mlp.body.up.weight) if one.mlp is not None and isinstance(one.mlp.body, Experts) else 0
            for one in recipe.layers
        ],
        "groups": next((each.router.groups for each in mlps if isinstance(each, Experts)), None),
        "chosen": mlp.router.chosen if isinstance(mlp, Experts) else 0,
        "shared": isinstance(mlp, Experts) and mlp.shared is not None,
        "parallel": layer.parallel,
        "embedding_scale": round(recipe.embedding_scale, 6),
        "learned_positions": recipe.positions is not None,
        "norms_of_stream": (layer.mixed_norm is not None, layer.end_norm is not None),
        "narrow": (recipe.embedding_projection is not None, recipe.head_projection is not None),
        "embedding_norm": recipe.embedding_norm is not None,
        "reads": [each.reads for each in recipe.attentions],
        "token_inputs": recipe.token_inputs is not None,
        "factors": (round(layer.mixers[0].scale, 5), round(recipe.head_scale, 5)),
        "head_softcap": recipe.head_softcap,
    }


def of_attention(attention: AttentionMixer) -> dict[str, Any]:
    if isinstance(attention, LatentAttention):
        return {
            "rotated": 0 if attention.rotary is None else 2 * attention.rotary.cosines.shape[1],
            "interleaved": attention.rotary is not None and attention.rotary.interleaved,
            "latents": (attention.rank, 0 if attention.query_norm is None else len(attention.query_norm.weight)),
            "of_heads": (attention.key_rows.shape[1], attention.rotated, attention.value_rows.shape[1]),
            "scale": round(attention.scale * (attention.key_rows.shape[1] + attention.rotated) ** 0.5, 6),
        }
    return {
        "gate": attention.gated,
        "kv_heads": attention.kv_heads,
        "rotated": 0 if attention.rotary is None else 2 * attention.rotary.cosines.shape[1],
        "head_norms": attention.query_norm is not None,
        "norms_across": attention.norms_across,
        "attention_bias": attention.projection.joined().bias is not None,
        "softcap": attention.softcap,
        "scale": round(attention.scale * attention.dim**0.5, 6),
        "slopes": None if attention.slopes is None else attention.slopes.tolist(),
    }


_LLAMA = {
    "mixers": ["Attention"] * 3,
    "gate": False,
    "kv_heads": 2,
    "rotated": 16,
    "head_norms": False,
    "norms_across": False,
    "attention_bias": False,
    "softcap": 0.0,
    "windows": [0, 0, 0],
    "norms": "r-r-",
    "gated": True,
    "activation": "silu",
    "experts": [0, 0, 0],
    "groups": None,
    "chosen": 0,
    "shared": False,
    "parallel": False,
    "embedding_scale": 1.0,
    "learned_positions": False,
    "norms_of_stream": (False, False),
    "narrow": (False, False),
    "embedding_norm": False,
    "scale": 1.0,
    "slopes": None,
    "reads": [None] * 3,
    "token_inputs": False,
    "factors": (1.0, 1.0),
    "head_softcap": 0.0,
}
_OF_ATTENTION = {
    "gate",
    "kv_heads",
    "rotated",
    "head_norms",
    "norms_across",
    "attention_bias",
    "softcap",
    "scale",
    "slopes",
}
_ONE = {"reads": [None], "windows": [0]}
_PLAIN = _LLAMA | {"kv_heads": 4, "attention_bias": True, "norms": "l-l-", "gated": False}
_FALCON = _PLAIN | {"activation": "gelu"}
_OWN = _FALCON | {"mixers": ["Attention"] * 2, "reads": [None] * 2, "windows": [0, 0], "experts": [0, 0]}
_LATENTS = {name: value for name, value in _LLAMA.items() if name not in _OF_ATTENTION} | {
    "mixers": ["LatentAttention"] * 3,
    "rotated": 8,
    "interleaved": False,
    "latents": (32, 24),
    "of_heads": (24, 8, 20),
    "scale": 1.0,
}
_DELTA_NETS = _LLAMA | {"mixers": ["DeltaNet", "Attention", "DeltaNet"], **_ONE, "head_norms": True}
EXPECTED: dict[str, dict[str, Any]] = {
    "gpt_neo": _OWN
    | {"attention_bias": False, "rotated": 0, "activation": "gelu_tanh", "scale": 4.0, "windows": [0, 8]}
    | {"learned_positions": True},
    "llama": _LLAMA,
    "many_heads": _LLAMA | {"head_norms": True, "kv_heads": 1},
    "apertus": _LLAMA | {"head_norms": True, "gated": False, "activation": "xielu"},
    "qwen2": _LLAMA | {"attention_bias": True},
    "qwen3": _LLAMA | {"head_norms": True, "rotated": 32},
    "mistral": _LLAMA | {"windows": [20, 20, 20]},
    "gemma2": _LLAMA
    | {
        "scale": 0.25,  # 1/16 of heads with 16 dimensions
        "softcap": 5.0,
        "windows": [24, 0, 24],
        "norms": "rrrr",
        "activation": "gelu_tanh",
        "embedding_scale": 8.0,
        "head_softcap": 10.0,
    },
    "gpt_neox": _PLAIN | {"rotated": 4, "activation": "gelu", "parallel": True},
    "phi": _PLAIN | {"rotated": 8, "activation": "gelu_tanh", "parallel": True},
    "gpt2": _PLAIN | {"rotated": 0, "activation": "gelu_tanh", "learned_positions": True},
    "opt": _PLAIN | {"rotated": 0, "activation": "relu", "learned_positions": True},
    "opt_350m": _PLAIN
    | {
        **{"rotated": 0, "activation": "relu", "learned_positions": True},
        **{"norms": "----", "norms_of_stream": (True, True), "narrow": (True, True)},
    },
    "nanochat": _LLAMA
    | {
        "norms": "--r-",  # what the first layer reads is normed already
        "head_norms": True,
        "gated": False,
        "activation": "relu_squared",
        "embedding_norm": True,
        "head_softcap": 15.0,
    },
    "gemma4": _LLAMA
    | {
        "mixers": ["Attention"] * 6,
        "reads": [None, None, None, 1, 2, 1],
        "windows": [24, 0, 24, 0, 24, 0],
        "experts": [0] * 6,
        "head_norms": True,
        "scale": 4.0,  # of heads with 16 dimensions
        "norms": "rrrr",
        "activation": "gelu_tanh",
        "embedding_scale": 8.0,
        "head_softcap": 10.0,
        "token_inputs": True,
    },
    "olmo": _LLAMA | {"norms": "l-l-"},
    "olmo2": _LLAMA | {"head_norms": True, "norms_across": True, "norms": "-r-r"},
    "nemotron": _PLAIN | {"kv_heads": 2, "attention_bias": False, "rotated": 8, "activation": "relu_squared"},
    "qwen3_moe": _LLAMA | {"head_norms": True, "experts": [32, 0, 32], "chosen": 3},
    "qwen2_moe": _LLAMA | {"attention_bias": True, "experts": [4, 4, 4], "chosen": 2, "shared": True},
    "qwen2_moe_window": _LLAMA
    | {"attention_bias": True, "experts": [4, 4, 4], "chosen": 2, "shared": True, "windows": [24, 0, 0]},
    "glm4_moe": _LLAMA | {"rotated": 8, "experts": [0, 6, 6]},
    "deepseek_v2": _LATENTS
    | {"interleaved": True, "latents": (32, 0), "experts": [0, 8, 8], "groups": ExpertGroups(4, 2, 1)},
    "deepseek_v3": _LATENTS | {"experts": [0, 8, 8], "groups": ExpertGroups(4, 2, 2)},
    "youtu": _LATENTS,
    "minicpm3": _LATENTS | {"embedding_scale": 12.0, "factors": (0.80829, 4.0)},
    "gpt_oss": _LLAMA
    | {
        "attention_bias": True,
        "windows": [24, 0, 24],
        "experts": [4, 4, 4],
        "chosen": 2,
        "activation": "clamped_swiglu",
    },
    "bloom": _OWN
    | {
        "rotated": 0,
        "activation": "gelu_tanh",
        "embedding_norm": True,
        "slopes": [2**-2, 2**-4, 2**-6, 2**-8],
    },
    "mpt": _OWN
    | {
        "kv_heads": 6,
        "rotated": 0,
        "attention_bias": False,
        "scale": 2.0,
        "slopes": [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    },
    "falcon": _FALCON | {"kv_heads": 1, "attention_bias": False, "parallel": True},
    "falcon_rw": _FALCON | {"rotated": 0, "slopes": [2**-4, 2**-6, 2**-8, 2**-10]},
    "falcon_40b": _FALCON | {"kv_heads": 2, "attention_bias": False, "parallel": True},
    "qwen3_5": _DELTA_NETS | {"gate": True, "rotated": 4},
    "qwen3_next": _DELTA_NETS | {"gate": True, "rotated": 4, "experts": [4, 4, 4], "chosen": 2, "shared": True},
    "olmo_hybrid": _DELTA_NETS | {"norms_across": True},
    "lfm2": _LLAMA | {"mixers": ["ShortConvolution", "Attention", "ShortConvolution"], **_ONE, "head_norms": True},
    "granite_h": _LLAMA
    | {
        "mixers": ["StateSpace", "Attention", "StateSpace"],
        **_ONE,
        "rotated": 0,
        "embedding_scale": 3.0,
        "factors": (0.5, 0.5),
        "scale": 0.8,
    },
    "nemotron_h": _LLAMA
    | {
        "mixers": ["StateSpace", "", "Attention", "StateSpace", ""],
        **_ONE,
        "rotated": 0,
        "norms": "r---",
        "gated": False,
        "activation": "relu_squared",
        "experts": [0, 4, 0, 0, 4],
        "chosen": 2,
        "shared": True,
    },
    "falcon_h1": _LLAMA
    | {
        "mixers": ["StateSpace+Attention"] * 3,
        "embedding_scale": 5.0,
        "scale": 0.4,
        "factors": (0.7, 0.1),
    },
    "jamba": _LLAMA
    | _ONE
    | {
        "mixers": ["SelectiveStateSpace", "Attention", "SelectiveStateSpace"],
        "rotated": 0,
        "experts": [0, 4, 0],
    },
    "mamba": {name: value for name, value in _LLAMA.items() if name not in _OF_ATTENTION}
    | {
        "mixers": ["SelectiveStateSpace"] * 2,
        "windows": [],
        "reads": [],
        "norms": "r---",
        "gated": False,
        "activation": None,
        "experts": [0, 0],
    },
    "mamba2": {name: value for name, value in _LLAMA.items() if name not in _OF_ATTENTION}
    | {"mixers": ["StateSpace"] * 3, "windows": [], "reads": [], "norms": "r---", "gated": False, "activation": None},
    "codegen": _OWN
    | {"rotated": 8, "kv_heads": 8, "attention_bias": False, "activation": "gelu_tanh", "parallel": True},
    "xglm": _OWN | {"rotated": 0, "learned_positions": True, "embedding_scale": 8.0},
    "openai_gpt": _OWN
    | {
        **{"rotated": 0, "activation": "gelu_tanh", "learned_positions": True},
        **{"norms": "----", "norms_of_stream": (True, True)},
    },
    "gptj": _OWN | {"rotated": 8, "attention_bias": False, "activation": "gelu_tanh", "parallel": True},
}


def test_every_architecture_has_expected_features() -> None:
    assert NATIVE.keys() <= EXPECTED.keys()


@pytest.mark.parametrize("architecture", NATIVE)
def test_a_recipe_has_the_features_of_its_architecture(architecture: str, tmp_path: Path) -> None:
    """The weights are as ill-conditioned as trained ones, in a format with few digits."""
    model = loaded(tmp_path, architecture, torch.bfloat16, sinks=True)
    assert features(read_recipe(model, 64)) == EXPECTED[architecture]


def test_a_soft_cap_is_seen_where_logits_are_small(tmp_path: Path) -> None:
    model = loaded(tmp_path, "gemma2")
    model.config.final_logit_softcapping = 100.0
    assert read_recipe(model, 64).head_softcap == 100.0


class _Odd(torch.nn.Module):
    """An MLP that does something else besides."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x) + 0.5 * x.flip(-1)
        return made


def test_an_unknown_module_is_not_guessed(tmp_path: Path) -> None:
    model = loaded(tmp_path, "llama")
    model.model.layers[1].mlp = _Odd(model.model.layers[1].mlp)
    with pytest.raises(NotUnderstoodError, match="layer 1"):
        read_recipe(model, 64)


@since("5.13")  # in 5.9 they are two modules
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_embeddings_that_differ_little_at_first_are_told_apart(dtype: torch.dtype) -> None:
    """OLMo 3's layers have YaRN's or the usual ones: so early in a text they differ by a factor and half a percent."""
    usual = {"rope_type": "default", "rope_theta": 500_000.0}
    config = Olmo3Config(
        **{"vocab_size": 320, "hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 4},
        **{"num_attention_heads": 2, "max_position_embeddings": 65_536, "sliding_window": 512},
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "sliding_attention": usual,
            "full_attention": {
                **usual,
                **{"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
                "attention_factor": 1.2079441541679836,
            },
        },
    )
    torch.manual_seed(7)
    register()
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    model.set_attn_implementation(PAGED)
    for kind, attention in zip(config.layer_types, read_recipe(model, 2048).attentions, strict=True):
        cosines, sines = model.model.rotary_emb(torch.zeros(1), torch.arange(2048)[None], kind)
        assert isinstance(attention, Attention) and attention.rotary is not None
        for actual, expected in ((attention.rotary.cosines, cosines), (attention.rotary.sines, sines)):
            torch.testing.assert_close(actual, expected[0, :, : actual.shape[1]].float())
        assert attention.scale == attention.dim**-0.5


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_experts_that_rounding_chooses_at_late_positions_are_no_growth(seed: int) -> None:
    """Rotations of far positions are rounded otherwise; in some later layer, a token then goes to another expert."""
    config = NATIVE["gpt_oss"]()
    config.layer_types = ["sliding_attention", "full_attention"] * 4
    config.num_hidden_layers, config.num_local_experts, config.max_position_embeddings = 8, 8, 8192
    torch.manual_seed(seed)
    register()
    model = AutoModelForCausalLM.from_config(config).bfloat16().eval()
    model.set_attn_implementation(PAGED)
    assert len(read_recipe(model, 8192).layers) == 8


@since("5.15")
def test_a_correction_that_the_router_is_given_is_read() -> None:
    """LFM2 keeps it beside the router."""
    config = Lfm2MoeConfig(
        **{"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "intermediate_size": 96, "moe_intermediate_size": 32, "num_dense_layers": 0},
        **{"num_experts": 8, "num_experts_per_tok": 2, "layer_types": ["conv", "full_attention"]},
        **{"initializer_range": 0.2, "max_position_embeddings": 256, "pad_token_id": 0},
    )
    torch.manual_seed(7)
    register()
    model = AutoModelForCausalLM.from_config(config).eval()
    model.set_attn_implementation(PAGED)
    biases = [layer.feed_forward.expert_bias.normal_() for layer in model.model.layers]
    for layer, bias in zip(read_recipe(model, 64).layers, biases, strict=True):
        assert layer.mlp is not None and isinstance(layer.mlp.body, Experts)
        assert layer.mlp.body.router.correction is not None
        assert torch.equal(layer.mlp.body.router.correction, bias)


def test_an_unknown_activation_is_named(tmp_path: Path) -> None:
    model = loaded(tmp_path, "llama")
    model.model.layers[0].mlp.act_fn = torch.nn.Softplus()
    with pytest.raises(NotUnderstoodError, match="layer 0: an unknown activation"):
        read_recipe(model, 64)


@since("5.13")
def test_groups_that_a_choice_does_not_show_are_not_left_out(tmp_path: Path) -> None:
    model = loaded(tmp_path, "deepseek_v2")
    for layer in model.model.layers[1:]:
        layer.mlp.gate.topk_method = "greedy"
    with pytest.raises(NotUnderstoodError, match="experts are chosen among groups, but not as the router says"):
        read_recipe(model, 256)


def test_an_activation_that_is_almost_a_curve_is_unknown(tmp_path: Path) -> None:
    model = loaded(tmp_path, "apertus")
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.Mish()
    with pytest.raises(NotUnderstoodError, match="layer 0: an unknown activation"):
        read_recipe(model, 256)


def test_each_layers_learned_activation_is_read(tmp_path: Path) -> None:
    """To more than bf16 tells."""
    model = loaded(tmp_path, "apertus", torch.bfloat16)
    learned = []
    for number, layer in enumerate(model.model.layers):
        own = layer.mlp.act_fn
        above, below = own.alpha_p.data.fill_(0.3 + 0.4 * number), own.alpha_n.data.fill_(0.3 * number - 0.5)
        learned.append((softplus(above.float()).item(), 0.5 + softplus(below.float()).item(), 0.5))
    mlps = [layer.mlp.body for layer in read_recipe(model, 256).layers if layer.mlp is not None]
    curves = [mlp.curve for mlp in mlps if isinstance(mlp, Mlp)]
    assert curves == [pytest.approx(numbers, rel=1e-4) for numbers in learned]


@since("5.15")
@pytest.mark.parametrize("columns", [0, 1])
def test_a_state_space_with_a_narrow_gate_or_none_is_left_to_torch(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program would look for all of its columns behind what was projected."""

    def forward(self: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        projected = self.in_proj(hidden_states * self.ssm_in_multiplier) * self.mup_vector
        gate, entering, dt = projected.split([columns, self.conv_dim, self.num_heads], -1)
        taps = self.conv1d.weight.squeeze(1)
        mixed = falcon_h1.causal_conv1d_fn(entering.mT, taps, self.conv1d.bias, activation=self.activation).mT
        shared = self.n_groups * self.ssm_state_size
        x, b, c = mixed.split([self.intermediate_size, shared, shared], -1)
        b, c = (each.unflatten(-1, (self.n_groups, -1)) for each in (b, c))
        scanned = falcon_h1.mamba2_chunk_scan(
            x.unflatten(-1, (-1, self.head_dim)), dt, -self.A_log.float().exp(), b, c, chunk_size=self.chunk_size,
            D=self.D, dt_bias=self.dt_bias, dt_softplus=True, dt_limit=self.time_step_limit,
        ).flatten(-2)  # fmt: skip
        return self.out_proj(self.norm(scanned, gate) if columns else scanned)

    model = loaded(tmp_path, "falcon_h1")
    monkeypatch.setattr(falcon_h1.FalconH1Mixer, "forward", forward)
    for layer in model.model.layers:
        mixer = layer.mamba
        left_out = mixer.intermediate_size - columns
        mixer.in_proj.weight.data = mixer.in_proj.weight.data[left_out:].clone()
        mixer.mup_vector = mixer.mup_vector[..., left_out:]
        mixer.norm = falcon_h1.FalconH1RMSNormGated(mixer.intermediate_size, n_groups=1, norm_before_gate=False)
    with pytest.raises(NotUnderstoodError, match="layer 0: "):
        read_recipe(model, 64)
