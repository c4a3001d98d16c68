"""The config.json and the generation_config.json of a GGUF model, out of its metadata. Runs where models are fetched.

What the metadata leaves to llama.cpp's source, such as Gemma's pattern of layers, is set as it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from .architectures import SECOND_NORM, Architecture, architecture_of
from .dequantizing import dequantize
from .errors import GgufError
from .reading import Metadata
from .shards import GgufModel

_DTYPES: Final = {"F32": "float32", "F16": "float16"}
#: The widest head that is read; the largest have 512.
_MOST_PLACES: Final = 65_536
_GEMMA_27B_LAYERS: Final = {"gemma2": 46, "gemma3": 62}
#: Sliding layers between two that see everything, of Gemma 3.
_GEMMA3_PATTERN: Final = 6
#: Llama 3's scaling of positions, of which the file has only the resulting factors.
_LLAMA3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_SAMPLING: Final = {
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.temp": "temperature",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def model_config(model: GgufModel) -> dict[str, Any]:
    """The model's config.json.

    Raises:
        GgufError: the metadata lacks something, or has what is not served here.
    """
    architecture, metadata = architecture_of(model), Metadata(model)
    heads, width = metadata.count(".attention.head_count"), metadata.count(".embedding_length")
    if (layers := metadata.count(".block_count")) > len(model.tensors):
        raise GgufError(f"{model.path}: {layers} layers, and {len(model.tensors)} tensors")
    usual = max(1, width // heads)
    head_dim = metadata.count(".attention.key_length", usual)
    if metadata.count(".attention.value_length", usual) != head_dim:
        raise GgufError(f"{model.path}: keys and values differ in length, which is not served here")
    config = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "dtype": _dtype(model),
        "vocab_size": _rows(model, "token_embd.weight"),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.count(".attention.head_count_kv", heads),
        "max_position_embeddings": metadata.count(".context_length"),
        "tie_word_embeddings": "output.weight" not in model.tensors,
        **_special_ids(metadata),
    }
    if architecture.model_type not in ("starcoder2", "falcon"):
        config["rms_norm_eps"] = _shortest(metadata.number(".attention.layer_norm_rms_epsilon"))
    if architecture.model_type not in ("phi3", "starcoder2", "falcon"):
        config["head_dim"] = head_dim
    if (key := ".feed_forward_length") in metadata:
        config["intermediate_size"] = metadata.count(key)
    config.update(_OWN.get(metadata.architecture, _nothing)(model, metadata, architecture))
    if "rope_parameters" not in config:
        config["rope_parameters"] = _rope(model, metadata, head_dim)
    return config


def generation_config(model: GgufModel, eos_ids: list[int]) -> dict[str, Any]:
    """The model's generation_config.json: the tokens that end a text, and the sampling that the file recommends."""
    metadata = Metadata(model)
    sampling = {name: _shortest(metadata.number(key)) for key, name in _SAMPLING.items() if key in metadata}
    if "top_k" in sampling:
        sampling["top_k"] = int(sampling["top_k"])
    config: dict[str, Any] = {"eos_token_id": eos_ids, **sampling}
    if sampling:
        config["do_sample"] = True
    ids = _special_ids(metadata)
    return {**config, **{name: ids[name] for name in ("bos_token_id", "pad_token_id") if name in ids}}


def _nothing(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    return {}


def _special_ids(metadata: Metadata) -> dict[str, int]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    full_keys = {name: f"tokenizer.ggml.{key}_token_id" for name, key in keys.items()}
    return {name: metadata.count(key, least=0) for name, key in full_keys.items() if key in metadata}


def _shortest(number: float) -> float:
    """The float32 number as it is usually written: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def _rows(model: GgufModel, name: str) -> int:
    if name not in model.tensors:
        raise GgufError(f"{model.path}: there is no tensor {name}; expected a language model")
    return model.tensors[name][1].shape[0]


def _dtype(model: GgufModel) -> str:
    """The format that most numbers have, or bf16 for quantized ones, which were made of such as a rule."""
    numbers = Counter[str]()
    for _, tensor in model.tensors.values():
        numbers[_DTYPES.get(tensor.type.name, "bfloat16")] += tensor.numbers
    return numbers.most_common(1)[0][0] if numbers else "bfloat16"


def _floats(model: GgufModel, name: str) -> list[float]:
    """The numbers of a tensor that is about the places in a head.

    Raises:
        GgufError: it is missing, or has more numbers than a head has.
    """
    if name not in model.tensors:
        raise GgufError(f"{model.path}: there is no tensor {name}")
    file, tensor = model.tensors[name]
    if tensor.numbers > _MOST_PLACES:
        raise GgufError(f"{model.path}: tensor {name} has {tensor.numbers} numbers; expected at most {_MOST_PLACES}")
    return [float(number) for number in dequantize(file.stored(tensor), tensor.type)]


def _rope(model: GgufModel, metadata: Metadata, head_dim: int) -> dict[str, Any]:
    """transformers' `rope_parameters`."""
    base: dict[str, Any] = {"rope_theta": _shortest(metadata.number(".rope.freq_base", 10000.0))}
    turned = metadata.count(".rope.dimension_count", head_dim)
    if turned != head_dim:
        raise GgufError(f"{model.path}: positions turn {turned} of a head's {head_dim} numbers; expected all of them")
    scaling = metadata.text(".rope.scaling.type", "none")
    if "rope_freqs.weight" in model.tensors:
        return {**base, **_llama3(model, head_dim, base["rope_theta"])}
    if scaling == "none":
        return {**base, "rope_type": "default"}
    if scaling == "linear":
        return {**base, "rope_type": "linear", "factor": metadata.number(".rope.scaling.factor")}
    if scaling == "yarn":
        yarn = {
            **base,
            "rope_type": "yarn",
            "factor": metadata.number(".rope.scaling.factor"),
            "original_max_position_embeddings": metadata.count(".rope.scaling.original_context_length"),
        }
        keys = {"attn_factor": "attention_factor", "yarn_attn_factor": "attention_factor"}
        keys |= {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
        return {
            **yarn,
            **{
                name: _shortest(metadata.number(f".rope.scaling.{key}"))
                for key, name in keys.items()
                if f".rope.scaling.{key}" in metadata
            },
        }
    raise GgufError(f"{model.path}: rope scaling {scaling!r} is not served here; expected none, linear or yarn")


def _llama3(model: GgufModel, head_dim: int, theta: float) -> dict[str, Any]:
    """Llama 3's scaling. Its factor is the greatest of the file's factors, and has to reproduce all of them.

    Raises:
        GgufError: the factors are another scaling's.
    """
    stored = np.array(_floats(model, "rope_freqs.weight"))
    factor = round(float(stored.max()), 4)
    waves = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    context = _LLAMA3["original_max_position_embeddings"]
    longest, shortest = context / _LLAMA3["low_freq_factor"], context / _LLAMA3["high_freq_factor"]
    smooth = (context / waves - _LLAMA3["low_freq_factor"]) / (_LLAMA3["high_freq_factor"] - _LLAMA3["low_freq_factor"])
    between = 1 / ((1 - smooth) / factor + smooth)
    made = np.where(waves < shortest, 1.0, np.where(waves > longest, factor, between))
    if stored.shape != made.shape or not np.allclose(stored, made, rtol=1e-4):
        raise GgufError(f"{model.path}: tensor rope_freqs.weight is not Llama 3's scaling of positions")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _llama(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    return {
        "attention_bias": "blk.0.attn_q.bias" in model.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in model.tensors,
        "hidden_act": "silu",
    }


def _granite(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    scales = {
        "attention_multiplier": ".attention.scale",
        "embedding_multiplier": ".embedding_scale",
        "residual_multiplier": ".residual_scale",
        "logits_scaling": ".logit_scale",
    }
    own = {name: _shortest(metadata.number(key)) for name, key in scales.items() if key in metadata}
    return {**_llama(model, metadata, architecture), **own}


def _qwen3(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in model.tensors}


def _experts(metadata: Metadata) -> dict[str, Any]:
    return {
        "num_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2moe(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    shared = metadata.count(".expert_shared_feed_forward_length")
    return {**_experts(metadata), "shared_expert_intermediate_size": shared, "norm_topk_prob": False}


def _qwen3moe(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    return {**_experts(metadata), **_qwen3(model, metadata, architecture), "norm_topk_prob": True}


def _scalar(metadata: Metadata) -> int:
    """The number by whose square root Gemma scales attention."""
    if metadata.count(".block_count") == _GEMMA_27B_LAYERS[metadata.architecture]:
        return metadata.count(".embedding_length") // metadata.count(".attention.head_count")
    return metadata.count(".attention.key_length")


def _layer_types(metadata: Metadata, pattern: int) -> list[str]:
    """All layers but the last of each `pattern` slide; the metadata may say for each layer whether it does."""
    layers, key = metadata.count(".block_count"), ".attention.sliding_window_pattern"
    slides = [bool((layer + 1) % pattern) for layer in range(layers)]
    if key in metadata:
        try:
            slides = [bool(each) for each in metadata.numbers(key)]
        except GgufError:
            slides = [bool((layer + 1) % metadata.count(key)) for layer in range(layers)]
    if len(slides) < layers:
        raise GgufError(f"{metadata.path}: {key} has {len(slides)} values; expected {layers}")
    return ["sliding_attention" if each else "full_attention" for each in slides[:layers]]


def _gemma2(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _scalar(metadata),
        "sliding_window": metadata.count(".attention.sliding_window", 4096),
        "attn_logit_softcapping": metadata.number(".attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number(".final_logit_softcapping", 30.0),
        "layer_types": _layer_types(metadata, 2),
    }


def _gemma3(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    slides = ".attention.sliding_window" in metadata
    pattern = _GEMMA3_PATTERN if slides else 1
    capped = metadata.number(".final_logit_softcapping", 0.0)
    local = _shortest(metadata.number(".rope.freq_base_swa", 10000.0))
    whole = _rope(model, metadata, metadata.count(".attention.key_length"))
    if ".rope.freq_base" not in metadata:
        whole["rope_theta"] = 1_000_000.0
    return {
        "query_pre_attn_scalar": _scalar(metadata),
        "sliding_window": metadata.count(".attention.sliding_window", 4096),
        "final_logit_softcapping": capped or None,
        "attn_logit_softcapping": None,
        "layer_types": _layer_types(metadata, pattern),
        "rope_parameters": {
            "full_attention": whole,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _phi3(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    context = metadata.count(".context_length")
    original = metadata.count(".rope.scaling.original_context_length", context)
    head_dim = max(1, metadata.count(".embedding_length") // metadata.count(".attention.head_count"))
    turned = metadata.count(".rope.dimension_count", head_dim)
    rope: dict[str, Any] = {
        "rope_theta": _shortest(metadata.number(".rope.freq_base", 10000.0)),
        "rope_type": "default",
        "partial_rotary_factor": turned / head_dim,
    }
    if "rope_factors_long.weight" in model.tensors:
        rope |= {
            "rope_type": "longrope",
            "long_factor": [_shortest(each) for each in _floats(model, "rope_factors_long.weight")],
            "short_factor": [_shortest(each) for each in _floats(model, "rope_factors_short.weight")],
            "original_max_position_embeddings": original,
        }
        if ".rope.scaling.attn_factor" in metadata:
            rope["attention_factor"] = _shortest(metadata.number(".rope.scaling.attn_factor"))
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": rope,
        "partial_rotary_factor": turned / head_dim,
        "sliding_window": metadata.count(".attention.sliding_window", 0, least=0) or None,
        **({} if "pad_token_id" in _special_ids(metadata) else {"pad_token_id": None}),
    }


def _starcoder2(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    return {
        "norm_epsilon": _shortest(metadata.number(".attention.layer_norm_epsilon")),
        "sliding_window": metadata.count(".attention.sliding_window", 0, least=0) or None,
        "use_bias": "blk.0.attn_q.bias" in model.tensors,
    }


def _falcon(model: GgufModel, metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    key_heads = metadata.count(".attention.head_count_kv", 1)
    return {
        "num_key_value_heads": key_heads,
        "num_kv_heads": key_heads,
        "new_decoder_architecture": key_heads > 1,
        "num_ln_in_parallel_attn": 2 if SECOND_NORM in model.tensors else 1,
        "multi_query": True,
        "parallel_attn": True,
        "alibi": False,
        "bias": False,
        "layer_norm_epsilon": _shortest(metadata.number(".attention.layer_norm_epsilon")),
        "ffn_hidden_size": metadata.count(".feed_forward_length"),
    }


_OWN: Final[Mapping[str, Any]] = {
    "llama": _llama,
    "granite": _granite,
    "qwen3": _qwen3,
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "starcoder2": _starcoder2,
    "falcon": _falcon,
}
