"""What the code uses of transformers beyond its documented face is there, as it is used.

Any release may rename these. A name that fails here says what no longer works, before a model says it in its own way.
"""

from __future__ import annotations

import ast
import inspect
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import transformers
from packaging.version import Version
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Cache,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
)

ROOT: Final = Path(__file__).resolve().parents[2]


class Used(NamedTuple):
    """A name that the code uses.

    Attributes:
        name: "module:name" or "module:class.name".
        feature: what doesn't work without it.
        given: how many arguments it is called with, the object of a method among them; None for what isn't called.
        named: arguments that it is called with by name.
        since: the release that brought it, if the oldest that is supported lacks it. Without it, models that need the
            feature are refused, or run without it.
    """

    name: str
    feature: str
    given: int | None = None
    named: tuple[str, ...] = ()
    since: str = ""


_CODES: Final = "weights that are read as a checkpoint stores them: GPTQ, AWQ, compressed-tensors, experts one by one"
_ATTENTION: Final = "paged attention, and which attention a model has"
_WINDOWS: Final = "sliding windows that a model has in its masks only"
_CACHES: Final = "decoding in batches on transformers' own cache"
_HYBRID: Final = "hybrid models on torch: the states of their layers"
_KERNELS: Final = "native kernels in place of the functions of a hybrid model that runs on torch"
_IMAGES: Final = "models that take images"
_ENCODER_DECODERS: Final = "encoder-decoder models under continuous batching"
_DEVICES: Final = "a model that several devices share"
_OFFLOADING: Final = "models larger than memory (option.device_map)"
_ZERO: Final = "weights that DeepSpeed partitions as they are loaded (ZeRO)"
_FORMATS: Final = "encoders in 16 bits whose code names fp32 for some weights"
_PROGRESS: Final = "the progress of loading"
_PIPELINES: Final = "djl_python.huggingface: which tasks transformers has pipelines for"
_LOADING: Final = "transformers.core_model_loading"
_QWEN: Final = "transformers.models.qwen3_5.modeling_qwen3_5"
_FALCON: Final = "transformers.models.falcon_h1.modeling_falcon_h1"

USED: Final = (
    Used("transformers.integrations:HfDeepSpeedConfig", _ZERO, 1),
    Used("transformers.integrations:unset_hf_deepspeed_config", _ZERO, 0),
    Used("transformers.pipelines:SUPPORTED_TASKS", _PIPELINES),
    Used("transformers.pipelines:TASK_ALIASES", _PIPELINES),
    Used(f"{_LOADING}:WeightConverter", _CODES),
    Used(f"{_LOADING}:MergeModulelist", _CODES, 0, ("dim",)),
    Used(f"{_LOADING}:Concatenate", _CODES, 0, ("dim",)),
    Used(f"{_LOADING}:dot_natural_key", _CODES, 1),
    Used(f"{_LOADING}:rename_source_key", _CODES, 5),
    Used("transformers.conversion_mapping:get_model_conversion_mapping", _CODES, 1),
    Used("transformers.quantizers.auto:register_quantization_config", _CODES, 1),
    Used("transformers.quantizers.auto:register_quantizer", _CODES, 1),
    Used("transformers.quantizers.base:HfQuantizer", _CODES),
    Used("transformers.quantizers.base:HfQuantizer._process_model_before_weight_loading", _CODES, 2),
    Used("transformers.utils.quantization_config:QuantizationConfigMixin", _CODES),
    Used("transformers:PreTrainedModel._keys_to_ignore_on_load_unexpected", _CODES),
    Used("transformers:PreTrainedModel.base_model_prefix", _CODES),
    Used("transformers:PreTrainedModel.set_experts_implementation", _CODES, 2),
    Used("transformers:PreTrainedModel.set_attn_implementation", _ATTENTION, 2),
    Used("transformers:PreTrainedConfig._attn_implementation", _ATTENTION),
    Used("transformers:PreTrainedConfig.sub_configs", _ATTENTION),
    Used("transformers:AttentionInterface.register", _ATTENTION, 2),
    Used("transformers:AttentionMaskInterface.register", _WINDOWS, 2),
    Used("transformers:AttentionMaskInterface._global_mapping", _WINDOWS),
    Used("transformers.cache_utils:DynamicLayer", _CACHES),
    Used("transformers.cache_utils:LinearAttentionLayer", _HYBRID),
    Used("transformers:Cache.update_conv_state", _HYBRID, 2, ("layer_idx",)),
    Used("transformers:Cache.update_recurrent_state", _HYBRID, 2, ("layer_idx",)),
    Used(f"{_QWEN}:torch_chunk_gated_delta_rule", _KERNELS),
    Used(f"{_QWEN}:torch_recurrent_gated_delta_rule", _KERNELS),
    Used(f"{_QWEN}:causal_conv1d_fn", _KERNELS),
    Used(f"{_QWEN}:causal_conv1d_update", _KERNELS),
    Used(f"{_FALCON}:mamba2_chunk_scan", _KERNELS, since="5.15"),
    Used(f"{_FALCON}:mamba2_selective_state_update", _KERNELS, since="5.15"),
    Used("transformers.modeling_outputs:BaseModelOutput", _ENCODER_DECODERS, 0, ("last_hidden_state",)),
    Used("transformers.modeling_outputs:BaseModelOutputWithPast", _IMAGES, 0, ("last_hidden_state",)),
    Used("transformers.models.auto.modeling_auto:MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", _IMAGES),
    Used("transformers.distributed:configuration_utils", _DEVICES),
    Used("transformers.distributed.configuration_utils:DistributedConfig", _DEVICES, 0, ("tp_size",), since="5.13"),
    Used("transformers:PreTrainedConfig.base_model_tp_plan", _DEVICES),
    Used("transformers:PreTrainedModel._no_split_modules", _OFFLOADING),
    Used("transformers:PreTrainedModel._keep_in_fp32_modules", _FORMATS),
    Used("transformers:PreTrainedModel._keep_in_fp32_modules_strict", _FORMATS),
    Used("transformers.utils:logging", _PROGRESS),
    Used("transformers.utils.logging:set_tqdm_hook", _PROGRESS, 1),
)


def resolve(name: str) -> Any:
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), import_module(module))


@pytest.mark.parametrize("used", USED, ids=lambda used: used.name)
def test_transformers_has_each_name_with_the_arguments_given(used: Used) -> None:
    if used.since and Version(transformers.__version__) < Version(used.since):
        pytest.skip(f"transformers has it since {used.since}")
    breaks = f"transformers {transformers.__version__} breaks {used.feature}"
    try:
        there = resolve(used.name)
    except (ImportError, AttributeError) as reason:
        pytest.fail(f"{breaks}. There is no {used.name}: {reason}", pytrace=False)
    if used.given is None:
        return
    signature = inspect.signature(there)
    try:
        signature.bind_partial(*range(used.given), **dict.fromkeys(used.named))
    except TypeError as reason:
        pytest.fail(f"{breaks}. {used.name}{signature} does not take what it is given: {reason}", pytrace=False)


@pytest.fixture(scope="module")
def nodes() -> list[ast.AST]:
    """All of the code."""
    paths = sorted(path for folder in ("djl_python", "handlers") for path in (ROOT / folder).rglob("*.py"))
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8")))]


def test_nothing_else_is_used_of_modules_within_transformers(nodes: list[ast.AST]) -> None:
    imported = {
        f"{node.module}:{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers.") and not node.level
        for alias in node.names
    }
    assert imported - {used.name for used in USED} == set()


def test_nothing_else_that_is_private_is_used(nodes: list[ast.AST]) -> None:
    """Private names are looked for that transformers' classes have, and the code itself has not."""
    own, used = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (own if of_self else used).add(node.attr)
    classes = (PreTrainedModel, PreTrainedConfig, AttentionInterface, AttentionMaskInterface, Cache, DynamicCache)
    theirs = {name for name in used - own if any(hasattr(each, name) for each in classes)}
    assert theirs and theirs - {each.name.rpartition(".")[2] for each in USED} == set()
